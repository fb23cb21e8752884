/** Where a model's replicas may be: choose nodes, see what would move, confirm. */

import { useCallback, useState } from "react";

import { useTopic } from "../live/live";
import type { NodeRow } from "../live/topics";
import { type ActPlan, Consequences, endsReplicasInUse } from "../parts/consequences";
import { Checkbox, SearchField } from "../parts/fields";
import { bytes, count } from "../parts/format";
import { PlanDialog } from "../parts/plan-dialog";
import { StatusPill } from "../parts/status-pill";
import { applyRule, planRule, wishOf } from "./act-plans";
import styles from "./acts.module.css";
import { word } from "./pull-words";
import { type Model, useForgetModels } from "./queries";

export function PinDialog({ model, onClose }: { model: Model; onClose: () => void }) {
  const forget = useForgetModels();
  const nodes = useTopic("nodes").items;
  const before = wishOf(model.scheduling);
  const [pinned, setPinned] = useState<ReadonlySet<string>>(new Set(before.pinned_nodes));
  const wish = { ...before, pinned_nodes: [...pinned] };
  const hasRule = model.scheduling !== null;
  // biome-ignore lint/correctness/useExhaustiveDependencies: the wish is made of the pins and the rule
  const plan = useCallback(() => planRule(model.name, wish, hasRule), [pinned, model]);
  const names = [...pinned].map((id) => nodes.get(id)?.name ?? id);
  const says =
    pinned.size === 0
      ? "Let it be on any node"
      : `Pin it to ${names.length === 1 ? names[0] : `${count(names.length)} nodes`}`;
  return (
    <PlanDialog<ActPlan>
      title={`Pin ${model.name} to nodes`}
      choose={<Choose nodes={[...nodes.values()]} pinned={pinned} setPinned={setPinned} />}
      plan={plan}
      show={(planned) => <Consequences plan={planned} nothing="Nothing is moved or ended by it." />}
      label={() => says}
      nameToType={(planned) => (endsReplicasInUse(planned) ? model.name : null)}
      act={async (planned) => {
        await applyRule(model.name, wish, hasRule, planned.hash);
        forget();
        return {
          message:
            pinned.size === 0 ? `${model.name} may be on any node.` : `${model.name} is pinned to ${names.join(", ")}.`,
        };
      }}
      command={() =>
        pinned.size === 0
          ? `corral models unpin ${word(model.name)}`
          : `corral models pin ${word(model.name)} ${names.map((name) => `--node ${word(name)}`).join(" ")}`
      }
      onClose={onClose}
    />
  );
}

interface ChooseProps {
  readonly nodes: readonly NodeRow[];
  readonly pinned: ReadonlySet<string>;
  readonly setPinned: (pinned: ReadonlySet<string>) => void;
}

const MOST_SHOWN = 200;

function Choose({ nodes, pinned, setPinned }: ChooseProps) {
  const [term, setTerm] = useState("");
  const workers = nodes.filter((node) => node.kind !== "agent" && node.status !== "pending");
  const shown = workers
    .filter((node) => node.name.toLowerCase().includes(term.toLowerCase()))
    .sort(
      (one, other) => Number(pinned.has(other.id)) - Number(pinned.has(one.id)) || one.name.localeCompare(other.name),
    );
  const toggle = (id: string) => {
    const next = new Set(pinned);
    if (!next.delete(id)) next.add(id);
    setPinned(next);
  };
  return (
    <div className={styles.form}>
      <p className={styles.quiet}>
        Its replicas are on these nodes and no others; those that are elsewhere are moved. None chosen: any node.
      </p>
      <SearchField label="Filter nodes by name" value={term} onChange={setTerm} />
      <div className={styles.nodes}>
        {shown.slice(0, MOST_SHOWN).map((node) => (
          <div key={node.id} className={styles.node}>
            <Checkbox isSelected={pinned.has(node.id)} onChange={() => toggle(node.id)}>
              {node.name}
            </Checkbox>
            <StatusPill subject="node" state={node.status} />
            <span className={styles.aside}>
              {node.vram.total ? `${bytes(node.vram.total)} VRAM` : `${bytes(node.ram.total)} RAM`}
            </span>
          </div>
        ))}
      </div>
      <p className={styles.quiet}>
        {count(pinned.size)} of {count(workers.length)} nodes chosen
        {shown.length > MOST_SHOWN ? `; the first ${MOST_SHOWN} are shown` : ""}.
      </p>
    </div>
  );
}
