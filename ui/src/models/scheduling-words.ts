/** A rule of scheduling in words, as the command line says it. Pure. */

import type { Schema } from "../api/client";
import { duration } from "../parts/format";

type Rule = Schema<"SchedulingView">;

/** How many replicas a rule wants. */
export function countsText(rule: Pick<Rule, "spread_all" | "min_replicas" | "max_replicas">): string {
  if (rule.spread_all) return "one on every node";
  if (rule.min_replicas === 0 && rule.max_replicas === 0) return "when asked";
  if (rule.min_replicas === rule.max_replicas) return `exactly ${rule.min_replicas}`;
  return rule.max_replicas === 0 ? `${rule.min_replicas} or more` : `${rule.min_replicas} to ${rule.max_replicas}`;
}

/** Where a rule lets replicas be. */
export function placesText(rule: Pick<Rule, "node_selector" | "pinned_nodes" | "pinned_names">): string {
  const labels = Object.entries(rule.node_selector)
    .sort(([one], [other]) => one.localeCompare(other))
    .map(([key, value]) => `${key}=${value}`);
  const names = rule.pinned_names?.length ? rule.pinned_names : rule.pinned_nodes;
  return [...labels, ...names].join(", ") || "any node";
}

/** When a rule has idle replicas unloaded; empty where the settings decide. */
export function idleText(rule: Pick<Rule, "idle_seconds">): string {
  if (rule.idle_seconds === null || rule.idle_seconds === undefined) return "";
  return rule.idle_seconds === 0 ? "never" : duration(rule.idle_seconds);
}

export function ruleText(rule: Rule): string {
  const idle = idleText(rule);
  return `${countsText(rule)}, on ${placesText(rule)}${idle === "" ? "" : `, unloaded when idle: ${idle}`}`;
}
