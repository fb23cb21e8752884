/** Removes a model from the fleet: what ends, which files go and which are kept, then each node's part of it. */

import { useCallback } from "react";

import { ask, type Schema } from "../api/client";
import { type ActPlan, Consequences, endsReplicasInUse } from "../parts/consequences";
import { PlanDialog } from "../parts/plan-dialog";
import { planRemoval } from "./act-plans";
import { PullProgress } from "./pull-progress";
import { word } from "./pull-words";
import { type Model, useForgetModels } from "./queries";

export function RemoveDialog({ model, onClose }: { model: Model; onClose: () => void }) {
  const forget = useForgetModels();
  const { name } = model;
  const plan = useCallback(() => planRemoval(name), [name]);
  return (
    <PlanDialog<ActPlan>
      title={`Remove ${name}`}
      plan={plan}
      show={(planned) => <Consequences plan={planned} nothing="Nothing runs for it, and it has no files here." />}
      label={() => `Remove ${name} from the fleet`}
      isDangerous
      nameToType={(planned) => (endsReplicasInUse(planned) ? name : null)}
      act={async (planned) => {
        const path = `/api/v1/models/${encodeURIComponent(name)}?plan_hash=${encodeURIComponent(planned.hash)}`;
        const operation = await ask<Schema<"OperationView">>("DELETE", path);
        return { operation: operation.id };
      }}
      command={() => `corral models remove ${word(name)}`}
      live={(operation) => <PullProgress operation={operation} model={name} done={<p>{name} is removed.</p>} />}
      onClose={() => {
        forget();
        onClose();
      }}
    />
  );
}
