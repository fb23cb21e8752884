/** The steps of an act: choose → plan → confirm → live → proof. Pure; the dialog only draws them. */

import { ApiError } from "../api/errors";

/** What every plan of the server has. */
export interface PlanLike {
  /** Of what would be done: the same fleet gives the same hash. */
  readonly hash: string;
  /** The same lines as the command line prints. */
  readonly text: string;
}

/** What an act came to: an operation to follow, or a sentence. */
export interface Acted {
  readonly operation?: string;
  readonly message?: string;
}

export type Step<Plan> =
  | { readonly at: "choose" }
  | { readonly at: "planning" }
  | { readonly at: "planned"; readonly plan: Plan; readonly isNew: boolean; readonly error: unknown }
  | { readonly at: "acting"; readonly plan: Plan }
  | { readonly at: "live"; readonly operation: string }
  | { readonly at: "done"; readonly message: string }
  | { readonly at: "failed"; readonly error: unknown };

export type StepEvent<Plan> =
  | { readonly kind: "ask" }
  | { readonly kind: "planned"; readonly plan: Plan }
  | { readonly kind: "confirm" }
  | { readonly kind: "acted"; readonly acted: Acted }
  | { readonly kind: "failed"; readonly error: unknown }
  | { readonly kind: "back" };

/** Heard by those who do not see the dialog when a step begins. */
export function stepName<Plan>(step: Step<Plan>): string {
  switch (step.at) {
    case "choose":
      return "Choose";
    case "planning":
      return "Asking what would happen";
    case "planned":
      return step.error === null ? "Plan" : "Plan, which was refused";
    case "acting":
      return "Asking for it";
    case "live":
      return "Progress";
    case "done":
      return "Done";
    case "failed":
      return "Failed";
  }
}

export function nextStep<Plan>(step: Step<Plan>, event: StepEvent<Plan>): Step<Plan> {
  switch (event.kind) {
    case "ask":
      return { at: "planning" };
    case "planned":
      return { at: "planned", plan: event.plan, isNew: false, error: null };
    case "confirm":
      return step.at === "planned" ? { at: "acting", plan: step.plan } : step;
    case "acted":
      return afterAct(event.acted);
    case "failed":
      return afterFailure(step, event.error);
    case "back":
      return { at: "choose" };
  }
}

function afterAct(acted: Acted): Step<never> {
  if (acted.operation !== undefined) return { at: "live", operation: acted.operation };
  return { at: "done", message: acted.message ?? "Done." };
}

/** A plan that is no longer that of the fleet is replaced by the new one; any other refusal keeps the plan in sight. */
function afterFailure<Plan>(step: Step<Plan>, error: unknown): Step<Plan> {
  const fresh = newPlanOf<Plan>(error);
  if (fresh !== null) return { at: "planned", plan: fresh, isNew: true, error: null };
  if (step.at === "acting") return { at: "planned", plan: step.plan, isNew: false, error };
  return { at: "failed", error };
}

function newPlanOf<Plan>(error: unknown): Plan | null {
  if (!(error instanceof ApiError) || error.code !== "stale_plan") return null;
  const body = error.body as { plan?: Plan } | null;
  return body?.plan ?? null;
}
