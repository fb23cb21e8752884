/** Adds, changes or deletes a fleet rule: form → plan → save. Two people at once see both versions. */

import { useQueryClient } from "@tanstack/react-query";
import { useCallback, useState } from "react";
import { OperationLive } from "../activity/operation-live";
import { answer, api } from "../api/client";
import { ApiError } from "../api/errors";
import { PlanDialog } from "../parts/plan-dialog";
import type { Acted } from "../parts/plan-steps";
import { FLEET_RULES } from "./queries";
import { RuleConflict } from "./rule-conflict";
import { RuleFields } from "./rule-fields";
import { afterText, applyCommand, type RulesPlan } from "./rule-plan";
import { RulePlanView } from "./rule-plan-view";
import { draftProblems, editedSet, type RuleEdit, type RuleSet, rebased } from "./rule-set";

interface RuleChangeProps {
  readonly start: RuleEdit;
  /** The set that the edit began with. */
  readonly base: RuleSet;
  readonly onClose: () => void;
}

interface State {
  readonly edit: RuleEdit;
  readonly base: RuleSet;
  /** What somebody else saved meanwhile; null while nobody did. */
  readonly theirs: RuleSet | null;
  /** Mine has been put on top of theirs: begin with the plan. */
  readonly isChosen: boolean;
}

export function RuleChange({ start, base, onClose }: RuleChangeProps) {
  const [state, setState] = useState<State>({ edit: start, base, theirs: null, isChosen: false });
  const client = useQueryClient();
  if (state.theirs !== null) {
    const { theirs } = state;
    const goOn = (isChosen: boolean) =>
      setState({ edit: rebased(state.edit, theirs.items), base: theirs, theirs: null, isChosen });
    return (
      <RuleConflict
        edit={state.edit}
        before={state.base.items}
        now={theirs.items}
        onMine={() => goOn(true)}
        onEdit={() => goOn(false)}
        onTheirs={onClose}
      />
    );
  }
  const act = async (agreed: RulesPlan): Promise<Acted> => {
    try {
      return await put(state.base, state.edit, agreed.hash);
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 412) throw error;
      const theirs = await answer(api.GET("/api/v1/fleet-rules"));
      setState({ ...state, theirs });
      return { message: "" };
    } finally {
      await client.invalidateQueries({ queryKey: FLEET_RULES });
    }
  };
  return <RuleDialog key={state.base.revision} state={state} setState={setState} act={act} onClose={onClose} />;
}

async function put(base: RuleSet, edit: RuleEdit, hash: string): Promise<Acted> {
  const headers = { "If-Match": `"${base.revision}"` };
  const body = { ...bodyOf(base, edit), plan_hash: hash };
  const applied = await answer(api.PUT("/api/v1/fleet-rules", { body, headers }));
  const [first, ...others] = applied.operations;
  return first !== undefined && others.length === 0 ? { operation: first.id } : { message: afterText(applied) };
}

function bodyOf(base: RuleSet, edit: RuleEdit) {
  return { rules: editedSet(base.items, edit), prune: edit.kind === "remove" && edit.deletes ? "demanded" : "" };
}

interface RuleDialogProps {
  readonly state: State;
  readonly setState: (state: State) => void;
  readonly act: (agreed: RulesPlan) => Promise<Acted>;
  readonly onClose: () => void;
}

function RuleDialog({ state, setState, act, onClose }: RuleDialogProps) {
  const { edit, base } = state;
  const plan = useCallback(
    (): Promise<RulesPlan> => answer(api.POST("/api/v1/fleet-rules/plan", { body: bodyOf(base, edit) })),
    [base, edit],
  );
  const isReady = edit.kind === "remove" || Object.keys(draftProblems(edit.draft, edit.was, base.items)).length === 0;
  const fields = <RuleFields edit={edit} rules={base.items} onChange={(next) => setState({ ...state, edit: next })} />;
  return (
    <PlanDialog
      title={titleOf(edit)}
      {...(state.isChosen ? {} : { choose: fields })}
      isChosen={isReady}
      plan={plan}
      show={(agreed) => <RulePlanView plan={agreed} />}
      label={() => (edit.kind === "remove" ? `Delete the rule ${edit.was}` : `Save the rule ${edit.draft.name.trim()}`)}
      isDangerous={edit.kind === "remove"}
      act={act}
      command={() => applyCommand(edit)}
      live={(operation) => <OperationLive id={operation} />}
      onClose={onClose}
    />
  );
}

function titleOf(edit: RuleEdit): string {
  if (edit.kind === "remove") return `Delete the rule ${edit.was}`;
  return edit.was === "" ? "New rule" : `Change the rule ${edit.was}`;
}
