import { describe, expect, it } from "vitest";

import { ApiError } from "../../api/errors";
import { nextStep, type PlanLike, type Step, stepName } from "../plan-steps";

const OLD: PlanLike = { hash: "old", text: "1 node" };
const NEW: PlanLike = { hash: "new", text: "2 nodes" };
const PLANNED: Step<PlanLike> = { at: "planned", plan: OLD, isNew: false, error: null };
const ACTING: Step<PlanLike> = { at: "acting", plan: OLD };

describe("an act", () => {
  it("is carried out only from a plan that was shown", () => {
    expect(nextStep<PlanLike>({ at: "choose" }, { kind: "confirm" })).toEqual({ at: "choose" });
    expect(nextStep(PLANNED, { kind: "confirm" })).toEqual(ACTING);
  });

  it("shows the new plan instead when the fleet changed meanwhile", () => {
    const stale = new ApiError(409, "stale_plan", "the fleet changed", "", "", { error: {}, plan: NEW });

    expect(nextStep(ACTING, { kind: "failed", error: stale })).toEqual({
      at: "planned",
      plan: NEW,
      isNew: true,
      error: null,
    });
  });

  it("keeps the plan in sight when the server refuses for another reason", () => {
    const refusal = new ApiError(403, "access_denied", "no");

    expect(nextStep(ACTING, { kind: "failed", error: refusal })).toEqual({ ...PLANNED, error: refusal });
  });

  it("becomes its operation, or a sentence where there is none", () => {
    expect(nextStep(ACTING, { kind: "acted", acted: { operation: "op" } })).toEqual({ at: "live", operation: "op" });
    expect(nextStep(ACTING, { kind: "acted", acted: {} })).toEqual({ at: "done", message: "Done." });
  });

  it("says why there is no plan", () => {
    const error = new Error("away");

    expect(nextStep<PlanLike>({ at: "planning" }, { kind: "failed", error })).toEqual({ at: "failed", error });
  });

  it("says its name, also when the plan was refused", () => {
    expect(stepName(PLANNED)).toBe("Plan");
    expect(stepName({ ...PLANNED, error: new Error("no") })).toBe("Plan, which was refused");
    expect(stepName({ at: "live", operation: "op" })).toBe("Progress");
  });
});
