/** Somebody else saved the rules meanwhile: both versions side by side, and what to do. Nothing was changed. */

import { Button } from "../parts/button";
import { classes } from "../parts/classes";
import { Dialog } from "../parts/dialog";
import { Notice } from "../parts/states";
import { type Conflict, conflictOf, isSameRule, type RuleAsk, type RuleEdit, ruleFields } from "./rule-set";
import styles from "./rules.module.css";

interface RuleConflictProps {
  readonly edit: RuleEdit;
  readonly before: readonly RuleAsk[];
  readonly now: readonly RuleAsk[];
  readonly onMine: () => void;
  readonly onEdit: () => void;
  readonly onTheirs: () => void;
}

export function RuleConflict({ edit, before, now, onMine, onEdit, onTheirs }: RuleConflictProps) {
  const conflict = conflictOf(edit, before, now);
  return (
    <Dialog
      title="Somebody else changed the rules"
      isWide
      onClose={onTheirs}
      footer={
        <>
          <Button onPress={onTheirs}>Keep theirs</Button>
          {edit.kind === "put" && <Button onPress={onEdit}>Edit again</Button>}
          <Button look="primary" onPress={onMine}>
            Plan mine on top
          </Button>
        </>
      }
    >
      <Notice tone="yellow">
        The rules were saved by somebody else since you opened them. Nothing of yours was saved.
      </Notice>
      {isSameRule(conflict.base, conflict.theirs) ? (
        <p>The rule that you edit was not touched.</p>
      ) : (
        <p>The rule that you edit is another one now. Saving yours would replace theirs.</p>
      )}
      <Versions conflict={conflict} />
      {conflict.others.length > 0 && <p>Other rules changed too, and are kept: {conflict.others.join(", ")}.</p>}
    </Dialog>
  );
}

function Versions({ conflict }: { conflict: Conflict }) {
  const [before, mine, theirs] = [ruleFields(conflict.base), ruleFields(conflict.mine), ruleFields(conflict.theirs)];
  // Where both made the rule, they differ from each other, not from what was there.
  const isNew = conflict.base === null;
  return (
    <table className={styles.versions}>
      <thead>
        <tr>
          <th scope="col">
            <span className="visually-hidden">Field</span>
          </th>
          <th scope="col">When you began</th>
          <th scope="col">Yours</th>
          <th scope="col">Theirs, now</th>
        </tr>
      </thead>
      <tbody>
        {before.map(([field, was], index) => (
          <tr key={field}>
            <th scope="row">{field}</th>
            <td>{was}</td>
            <Version text={mine[index]?.[1] ?? ""} other={isNew ? (theirs[index]?.[1] ?? "") : was} />
            <Version text={theirs[index]?.[1] ?? ""} other={isNew ? (mine[index]?.[1] ?? "") : was} />
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Version({ text, other }: { text: string; other: string }) {
  const isChanged = text !== other;
  return (
    <td className={classes(isChanged && styles.changed)}>
      {text}
      {isChanged && <span className="visually-hidden"> (differs)</span>}
    </td>
  );
}
