/** Draining a node: first what would move, end or stay, then the drain itself. Its progress is on the node's page. */

import { useCallback, useState } from "react";

import { ask } from "../api/client";
import type { NodeRow } from "../live/topics";
import { type ActPlan, Consequences, endsReplicasInUse } from "../parts/consequences";
import { Checkbox } from "../parts/fields";
import { PlanDialog } from "../parts/plan-dialog";

export function DrainDialog({ node, onClose }: { node: NodeRow; onClose: () => void }) {
  const [force, setForce] = useState(node.status === "draining");
  const path = `/api/v1/nodes/${encodeURIComponent(node.id)}/drain`;
  const plan = useCallback(() => ask<ActPlan>("POST", `${path}/plan`, { force }), [path, force]);
  return (
    <PlanDialog<ActPlan>
      title={`Drain ${node.name}`}
      choose={
        <>
          <Meaning />
          <Checkbox isSelected={force} onChange={setForce}>
            Force it: also end what no other node can take
          </Checkbox>
        </>
      }
      isPlanFirst
      plan={plan}
      show={(shown) => (
        <>
          <Meaning />
          <Consequences plan={shown} nothing="Nothing runs there: the machine can be taken away at once." />
        </>
      )}
      label={() => (force ? `Drain ${node.name} by force` : `Drain ${node.name}`)}
      isDangerous={force}
      nameToType={(shown) => (force && endsReplicasInUse(shown) ? node.name : null)}
      command={() => `corral nodes drain ${node.name}${force ? " --force" : ""}`}
      act={async (shown) => {
        await ask("POST", path, { force, plan_hash: shown.hash });
        return { message: `${node.name} is being drained. Its page shows what is left.` };
      }}
      onClose={onClose}
    />
  );
}

function Meaning() {
  return (
    <p>
      A drained node takes no new work. What it runs is loaded elsewhere first and then ends here, without losing
      requests.
    </p>
  );
}
