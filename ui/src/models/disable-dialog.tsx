/** Disables a model: requests for it are refused, and its replicas end. */

import { useCallback } from "react";

import { answer, api } from "../api/client";
import { type ActPlan, Consequences, endsReplicasInUse } from "../parts/consequences";
import { PlanDialog } from "../parts/plan-dialog";
import { planUnload } from "./act-plans";
import { word } from "./pull-words";
import { type Model, useForgetModels } from "./queries";

export function DisableDialog({ model, onClose }: { model: Model; onClose: () => void }) {
  const forget = useForgetModels();
  const { name } = model;
  const plan = useCallback(() => planUnload(name), [name]);
  return (
    <PlanDialog<ActPlan>
      title={`Disable ${name}`}
      plan={plan}
      show={(planned) => (
        <>
          <p>Requests for {name} are refused until somebody enables it again. Its configuration and files stay.</p>
          <Consequences plan={planned} nothing="Nothing runs for it." />
        </>
      )}
      label={() => `Disable ${name}`}
      isDangerous
      nameToType={(planned) => (endsReplicasInUse(planned) ? name : null)}
      act={async () => {
        await answer(api.POST("/api/v1/model-states", { body: { name, is_disabled: true, is_pinned: null } }));
        forget();
        return { message: `${name} is disabled.` };
      }}
      command={() => `corral models disable ${word(name)}`}
      onClose={onClose}
    />
  );
}
