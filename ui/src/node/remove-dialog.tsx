/** Removing a node: models that move or lose service, and what is cancelled there, before anything is done. */

import { useCallback } from "react";

import { ask } from "../api/client";
import type { NodeRow } from "../live/topics";
import { type ActPlan, Consequences, endsReplicasInUse } from "../parts/consequences";
import { PlanDialog } from "../parts/plan-dialog";

export function RemoveDialog({ node, onClose }: { node: NodeRow; onClose: () => void }) {
  const path = `/api/v1/nodes/${encodeURIComponent(node.id)}`;
  const plan = useCallback(() => ask<ActPlan>("POST", `${path}/removal/plan`), [path]);
  return (
    <PlanDialog<ActPlan>
      title={`Remove ${node.name}`}
      plan={plan}
      show={(shown) => (
        <>
          <p>
            The fleet forgets this node, with its approval and its labels. What is on its disk stays there; a worker
            that still runs has to be let in again.
          </p>
          <Consequences plan={shown} nothing="Nothing else depends on it." />
        </>
      )}
      label={() => `Remove ${node.name}`}
      isDangerous
      nameToType={(shown) => (endsReplicasInUse(shown) ? node.name : null)}
      command={() => `corral nodes remove ${node.name}`}
      act={async (shown) => {
        await ask("DELETE", `${path}?${new URLSearchParams({ plan_hash: shown.hash })}`);
        return { message: `${node.name} is not part of the fleet any more.` };
      }}
      onClose={onClose}
    />
  );
}
