/** Deletes the rule of a model, after showing what would end. */

import { useQueryClient } from "@tanstack/react-query";
import { useCallback } from "react";

import { answer, api } from "../api/client";
import { Consequences } from "../parts/consequences";
import { PlanDialog } from "../parts/plan-dialog";
import { shellCommand } from "../parts/shell-words";
import { SCHEDULING } from "./queries";
import { type SchedulingView, withPlaces } from "./scheduling-draft";

export function SchedulingRemoval({ rule, onClose }: { rule: SchedulingView; onClose: () => void }) {
  const client = useQueryClient();
  const { model } = rule;
  const plan = useCallback(() => {
    const body = { rules: [], prune: "", remove: [model], unload: [] };
    return answer(api.POST("/api/v1/scheduling/plan", { body })).then(withPlaces);
  }, [model]);
  const act = async (hash: string) => {
    const params = { path: { model }, query: { plan_hash: hash } };
    await answer(api.DELETE("/api/v1/scheduling/{model}", { params }));
    await client.invalidateQueries({ queryKey: SCHEDULING });
    return { message: `${model} has no rule any more: it is loaded when somebody asks.` };
  };
  return (
    <PlanDialog
      title={`Delete the rule of ${model}`}
      plan={plan}
      show={(agreed) => (
        <Consequences
          plan={agreed}
          nothing="Nothing would move now. Without a rule the model is loaded when somebody asks."
        />
      )}
      label={() => `Delete the rule of ${model}`}
      isDangerous
      act={(agreed) => act(agreed.hash)}
      command={() => shellCommand(["corral", "models", "scale", model, "--auto"])}
      onClose={onClose}
    />
  );
}
