/** Plans of acts on a model, in the one form that the dialogs show. */

import { ask, type Schema } from "../api/client";
import type { ActPlan } from "../parts/consequences";

/** What a whole rule says. */
export interface RuleWish {
  readonly node_selector: Readonly<Record<string, string>>;
  readonly pinned_nodes: readonly string[];
  readonly min_replicas: number;
  readonly max_replicas: number;
  readonly spread_all: boolean;
  readonly idle_seconds: number | null;
  readonly route_policy: string;
  readonly balance_abs_threshold: number;
  readonly balance_rel_threshold: number;
  readonly min_prefix_match: number;
}

const NO_RULE: RuleWish = {
  node_selector: {},
  pinned_nodes: [],
  min_replicas: 0,
  max_replicas: 0,
  spread_all: false,
  idle_seconds: null,
  route_policy: "",
  balance_abs_threshold: 0,
  balance_rel_threshold: 0,
  min_prefix_match: 0,
};

/** The rule that a model has, as a wish; one without a rule wants nothing. */
export function wishOf(rule: Schema<"SchedulingView"> | null): RuleWish {
  if (rule === null) return NO_RULE;
  const { node_selector, pinned_nodes, min_replicas, max_replicas, spread_all, idle_seconds } = rule;
  const { route_policy, balance_abs_threshold, balance_rel_threshold, min_prefix_match } = rule;
  return {
    node_selector: node_selector as Readonly<Record<string, string>>,
    pinned_nodes,
    min_replicas,
    max_replicas,
    spread_all,
    idle_seconds,
    route_policy,
    balance_abs_threshold,
    balance_rel_threshold,
    min_prefix_match,
  };
}

/** Whether a rule wants nothing: then the model needs none, and is loaded when somebody asks. */
export function saysNothing(wish: RuleWish): boolean {
  return (
    wish.min_replicas === 0 &&
    wish.max_replicas === 0 &&
    !wish.spread_all &&
    wish.pinned_nodes.length === 0 &&
    Object.keys(wish.node_selector).length === 0 &&
    wish.idle_seconds === null &&
    wish.route_policy === ""
  );
}

/** What a rule would lead to, until nothing is left to do. */
export function planRule(model: string, wish: RuleWish, hasRule: boolean): Promise<ActPlan> {
  const change = saysNothing(wish) ? { remove: hasRule ? [model] : [] } : { rules: [{ model, ...wish }] };
  return ask<ActPlan>("POST", "/api/v1/scheduling/plan", change);
}

/** Sets the rule, or deletes it where it says nothing any more. */
export async function applyRule(model: string, wish: RuleWish, hasRule: boolean, hash: string): Promise<void> {
  const path = `/api/v1/scheduling/${encodeURIComponent(model)}`;
  if (!saysNothing(wish)) await ask("PUT", path, { ...wish, plan_hash: hash });
  else if (hasRule) await ask("DELETE", `${path}?plan_hash=${encodeURIComponent(hash)}`);
}

/** What unloading a model everywhere would end. */
export function planUnload(model: string): Promise<ActPlan> {
  return ask<ActPlan>("POST", "/api/v1/scheduling/plan", { unload: [model] });
}

export function planRemoval(model: string): Promise<ActPlan> {
  return ask<ActPlan>("POST", "/api/v1/model-removals/plan", { name: model });
}
