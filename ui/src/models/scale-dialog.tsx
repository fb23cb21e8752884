/** How many replicas a model should have: choose, see what would be loaded and ended, confirm. */

import { useCallback, useState } from "react";

import { type ActPlan, Consequences, endsReplicasInUse } from "../parts/consequences";
import { TextField } from "../parts/fields";
import { PlanDialog } from "../parts/plan-dialog";
import { Segments } from "../parts/segments";
import { applyRule, planRule, type RuleWish, wishOf } from "./act-plans";
import styles from "./acts.module.css";
import { type Counts, countsOf, countsProblem, type Mode, readCounts, scaleCommand } from "./counts";
import { type Model, useForgetModels } from "./queries";
import { countsText, ruleText } from "./scheduling-words";

const MODES: readonly { readonly id: Mode; readonly label: string }[] = [
  { id: "asked", label: "When asked" },
  { id: "exactly", label: "Exactly" },
  { id: "between", label: "Between" },
  { id: "spread", label: "One on every node" },
];

export function ScaleDialog({ model, onClose }: { model: Model; onClose: () => void }) {
  const forget = useForgetModels();
  const before = wishOf(model.scheduling);
  const [counts, setCounts] = useState<Counts>(countsOf(before));
  const problem = countsProblem(counts);
  const wish: RuleWish = { ...before, ...readCounts(counts) };
  const hasRule = model.scheduling !== null;
  // biome-ignore lint/correctness/useExhaustiveDependencies: the wish is made of the counts and the rule
  const plan = useCallback(() => planRule(model.name, wish, hasRule), [counts, model]);
  return (
    <PlanDialog<ActPlan>
      title={`Scale ${model.name}`}
      choose={<Choose model={model} counts={counts} setCounts={setCounts} problem={problem} />}
      isChosen={problem === ""}
      plan={plan}
      show={(planned) => <Consequences plan={planned} nothing="Nothing is loaded, moved or ended by it." />}
      label={() => `Have ${countsText(wish)}`}
      nameToType={(planned) => (endsReplicasInUse(planned) ? model.name : null)}
      act={async (planned) => {
        await applyRule(model.name, wish, hasRule, planned.hash);
        forget();
        return { message: `${model.name}: ${countsText(wish)}. The page shows what follows from it.` };
      }}
      command={() => scaleCommand(model.name, counts)}
      onClose={onClose}
    />
  );
}

interface ChooseProps {
  readonly model: Model;
  readonly counts: Counts;
  readonly setCounts: (counts: Counts) => void;
  readonly problem: string;
}

function Choose({ model, counts, setCounts, problem }: ChooseProps) {
  const set = (change: Partial<Counts>) => setCounts({ ...counts, ...change });
  return (
    <div className={styles.form}>
      <p className={styles.quiet}>
        Now: {model.scheduling === null ? "when asked, on any node" : ruleText(model.scheduling)}.
      </p>
      <Segments label="Replicas" isLabelShown segments={MODES} value={counts.mode} onChange={(mode) => set({ mode })} />
      {counts.mode === "exactly" && (
        <TextField
          label="How many"
          type="number"
          value={counts.exactly}
          onChange={(exactly) => set({ exactly })}
          error={problem}
        />
      )}
      {counts.mode === "between" && (
        <div className={styles.pair}>
          <TextField
            label="At least"
            type="number"
            value={counts.least}
            onChange={(least) => set({ least })}
            error={problem}
          />
          <TextField
            label="At most"
            type="number"
            value={counts.most}
            onChange={(most) => set({ most })}
            hint="0: without limit"
          />
        </div>
      )}
      <p className={styles.quiet}>{HINTS[counts.mode]}</p>
    </div>
  );
}

const HINTS: Readonly<Record<Mode, string>> = {
  asked: "It is loaded when somebody asks, and unloaded when it has been idle for long or others need the room.",
  exactly: "So many replicas are kept, whatever the load.",
  between: "Their number follows the load, within these bounds.",
  spread: "Every node that the model may be on has one replica.",
};
