/** Every change of a model: who, when, what; and the way back to any of them. */

import { useCallback, useState } from "react";

import { ask } from "../api/client";
import { Button } from "../parts/button";
import { Section } from "../parts/page";
import { PlanDialog } from "../parts/plan-dialog";
import { Age } from "../parts/time";
import { useMay } from "../shell/session";
import type { Change } from "./config-check";
import type { Revision } from "./config-editor";
import styles from "./config-editor.module.css";
import { type ChangePlan, planOf, Restarts } from "./config-save";
import { DiffView } from "./diff-view";
import { word } from "./pull-words";
import { useForgetModels } from "./queries";

export function ConfigHistory({ model, revisions }: { model: string; revisions: readonly Revision[] }) {
  const [target, setTarget] = useState<Revision | null>(null);
  const mayAct = useMay("models.act");
  const [now] = revisions;
  return (
    <Section title="History" isBare>
      <div className={styles.history}>
        {revisions.map((revision, index) => {
          const canReturn = mayAct && index > 0 && revision.change !== "removed" && revision.text !== now?.text;
          return (
            <RevisionRow
              key={revision.number}
              revision={revision}
              before={revisions[index + 1]}
              isNow={index === 0}
              {...(canReturn ? { onReturn: () => setTarget(revision) } : {})}
            />
          );
        })}
      </div>
      {target !== null && now !== undefined && (
        <RollbackDialog {...{ model, now, target }} onClose={() => setTarget(null)} />
      )}
    </Section>
  );
}

interface RowProps {
  readonly revision: Revision;
  readonly before: Revision | undefined;
  readonly isNow: boolean;
  readonly onReturn?: () => void;
}

function RevisionRow({ revision, before, isNow, onReturn }: RowProps) {
  return (
    <details className={styles.revision}>
      <summary className={styles.revisionHead}>
        <span className={styles.number}>{revision.number}</span>
        <span>{whatAndWho(revision)}</span>
        <span className={styles.quiet}>
          <Age at={revision.changed_at} />
          {isNow ? " · current" : ""}
        </span>
      </summary>
      <div className={styles.revisionBody}>
        <DiffView before={before?.text ?? ""} after={revision.text} label={`What change ${revision.number} changed`} />
        {onReturn !== undefined && (
          <div>
            <Button isSmall onPress={onReturn}>
              Go back to this…
            </Button>
          </div>
        )}
      </div>
    </details>
  );
}

/** "edited by admin"; a file that changed a model says what it did itself. */
function whatAndWho({ change, changed_by: who }: Revision): string {
  if (who === "" || who.startsWith(`${change} `)) return who || change;
  return `${change} by ${who}`;
}

interface RollbackProps {
  readonly model: string;
  readonly now: Revision;
  readonly target: Revision;
  readonly onClose: () => void;
}

function RollbackDialog({ model, now, target, onClose }: RollbackProps) {
  const forget = useForgetModels();
  const plan = useCallback(async () => planOf(await rollBack(model, target.number, true)), [model, target.number]);
  return (
    <PlanDialog<ChangePlan>
      title={`Make ${model} what it was at ${target.number}`}
      plan={plan}
      show={(change) => (
        <>
          <DiffView before={now.text} after={target.text} label={`What changes in ${model}`} />
          <Restarts change={change} />
        </>
      )}
      label={() => `Go back to ${target.number}`}
      act={async () => {
        const change = await rollBack(model, target.number, false);
        forget();
        return { message: `${model} is as at ${target.number} again; this is change ${change.number}.` };
      }}
      command={() => `corral models rollback ${word(model)} ${target.number}`}
      onClose={onClose}
    />
  );
}

function rollBack(name: string, number: number, isTrial: boolean): Promise<Change> {
  return ask<Change>("POST", "/api/v1/model-rollbacks", { name, number, dry_run: isTrial });
}
