/** Makes or changes the rule of a model: form → what would run where → save. */

import { useQueryClient } from "@tanstack/react-query";
import { useCallback, useState } from "react";

import { answer, api } from "../api/client";
import { useTopic } from "../live/live";
import { Consequences } from "../parts/consequences";
import { PlanDialog } from "../parts/plan-dialog";
import { Notice } from "../parts/states";
import { SCHEDULING } from "./queries";
import {
  countsText,
  NEW_SCHEDULING,
  placesText,
  type SchedulingView,
  scaleCommand,
  schedulingAsk,
  schedulingDraft,
  schedulingProblems,
  withPlaces,
} from "./scheduling-draft";
import { SchedulingFields } from "./scheduling-fields";

interface SchedulingChangeProps {
  /** The rule when the dialog opened; null for a model without one. */
  readonly before: SchedulingView | null;
  readonly model: string;
  /** All rules as they are now. */
  readonly rules: readonly SchedulingView[];
  readonly onClose: () => void;
}

export function SchedulingChange({ before, model, rules, onClose }: SchedulingChangeProps) {
  const [draft, setDraft] = useState(before === null ? { ...NEW_SCHEDULING, model } : schedulingDraft(before));
  const client = useQueryClient();
  const { items: nodes } = useTopic("nodes");
  const plan = useCallback(async () => {
    const body = { rules: [schedulingAsk(draft, before)], prune: "", remove: [], unload: [] };
    return answer(api.POST("/api/v1/scheduling/plan", { body })).then(withPlaces);
  }, [draft, before]);
  const ask = schedulingAsk(draft, before);
  const act = async (hash: string) => {
    const { model: name, ...fields } = ask;
    const params = { path: { model: name } };
    await answer(api.PUT("/api/v1/scheduling/{model}", { params, body: { ...fields, plan_hash: hash } }));
    await client.invalidateQueries({ queryKey: SCHEDULING });
    return { message: `The rule of ${name} is saved, and takes effect at once.` };
  };
  const now = rules.find((rule) => rule.model === draft.model.trim()) ?? null;
  return (
    <PlanDialog
      title={before === null ? "New rule for a model" : `Rule of ${before.model}`}
      choose={
        <>
          <ChangedMeanwhile before={before} now={now} />
          <SchedulingFields draft={draft} isNew={before === null} onChange={setDraft} />
        </>
      }
      isChosen={Object.keys(schedulingProblems(draft)).length === 0}
      plan={plan}
      show={(agreed) => (
        <Consequences plan={agreed} nothing="Nothing would move now: the fleet is as the rule wants it." />
      )}
      label={() => `Save the rule of ${draft.model.trim()}`}
      act={(agreed) => act(agreed.hash)}
      command={() => scaleCommand(ask, (id) => nodes.get(id)?.name ?? id)}
      onClose={onClose}
    />
  );
}

/** Both versions, when somebody else saved the rule after this dialog was opened. */
function ChangedMeanwhile({ before, now }: { before: SchedulingView | null; now: SchedulingView | null }) {
  if (before?.updated_at === now?.updated_at) return null;
  if (now === null)
    return <Notice tone="yellow">Somebody deleted this rule since you opened it. Saving makes it again.</Notice>;
  const theirs = `${countsText(now)}, on ${placesText(now)}`;
  if (before === null) {
    return <Notice tone="yellow">This model has a rule already: {theirs}. Saving yours replaces it.</Notice>;
  }
  return (
    <Notice tone="yellow">
      {now.updated_by} changed this rule since you opened it. It was: {countsText(before)}, on {placesText(before)}. It
      is now: {theirs}. Saving yours replaces it.
    </Notice>
  );
}
