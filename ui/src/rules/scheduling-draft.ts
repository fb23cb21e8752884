/** A rule of scheduling as somebody types it: how many replicas, where, for how long. Pure. */

import type { Schema } from "../api/client";
import { duration } from "../parts/format";
import { hasLabels, labelText, readLabels } from "../parts/labels";
import { shellCommand } from "../parts/shell-words";

export type SchedulingView = Schema<"SchedulingView">;
export type SchedulingAsk = Schema<"NamedScheduling">;
export type Form = "asked" | "counts" | "spread";

export interface SchedulingDraft {
  readonly model: string;
  readonly form: Form;
  readonly least: string;
  /** 0 is without limit. */
  readonly most: string;
  readonly labels: string;
  readonly pinned: ReadonlySet<string>;
  /** "" as the settings say, "never", or a time such as 10m. */
  readonly idle: string;
  readonly routePolicy: string;
}

export const NEW_SCHEDULING: SchedulingDraft = {
  model: "",
  form: "counts",
  least: "1",
  most: "1",
  labels: "",
  pinned: new Set(),
  idle: "",
  routePolicy: "",
};

export function schedulingDraft(rule: SchedulingView): SchedulingDraft {
  return {
    model: rule.model,
    form: rule.spread_all ? "spread" : rule.min_replicas > 0 || rule.max_replicas > 0 ? "counts" : "asked",
    least: String(rule.min_replicas),
    most: String(rule.max_replicas),
    labels: labelText(rule.node_selector),
    pinned: new Set(rule.pinned_nodes),
    idle: rule.idle_seconds === null ? "" : rule.idle_seconds === 0 ? "never" : `${rule.idle_seconds}s`,
    routePolicy: rule.route_policy,
  };
}

/** The whole rule. What the form does not show stays as it was in the rule before. */
export function schedulingAsk(draft: SchedulingDraft, before: SchedulingView | null): SchedulingAsk {
  const hasCounts = draft.form === "counts";
  return {
    model: draft.model.trim(),
    node_selector: { ...readLabels(draft.labels).labels },
    pinned_nodes: [...draft.pinned],
    min_replicas: hasCounts ? Number(draft.least) : 0,
    max_replicas: hasCounts ? Number(draft.most) : 0,
    spread_all: draft.form === "spread",
    idle_seconds: idleSeconds(draft.idle) ?? null,
    route_policy: draft.routePolicy,
    ...(before === null
      ? {}
      : {
          balance_abs_threshold: before.balance_abs_threshold,
          balance_rel_threshold: before.balance_rel_threshold,
          min_prefix_match: before.min_prefix_match,
        }),
  };
}

const UNITS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3600, d: 86_400 };

/** Seconds of `10m`, 0 of `never`, null where the settings decide; undefined for what is no time. */
export function idleSeconds(text: string): number | null | undefined {
  const word = text.trim();
  if (word === "" || word === "default") return null;
  if (word === "never") return 0;
  const match = /^(\d+)([smhd])$/.exec(word);
  const seconds = Number(match?.[1]) * (UNITS[match?.[2] ?? ""] ?? Number.NaN);
  return Number.isFinite(seconds) && seconds > 0 ? seconds : undefined;
}

export type DraftField = "model" | "least" | "most" | "labels" | "idle";

export function schedulingProblems(draft: SchedulingDraft): Partial<Record<DraftField, string>> {
  const problems: Partial<Record<DraftField, string>> = {};
  if (draft.model.trim() === "") problems.model = "Name a model.";
  const { problem } = readLabels(draft.labels);
  if (problem !== "") problems.labels = problem;
  if (idleSeconds(draft.idle) === undefined) problems.idle = "Write a time such as 10m, or never, or nothing.";
  if (draft.form === "counts") countProblems(draft, problems);
  if (draft.form === "spread" && (idleSeconds(draft.idle) ?? 0) > 0)
    problems.idle = "Every node keeps its replica: leave this empty.";
  return problems;
}

function countProblems({ least, most }: SchedulingDraft, problems: Partial<Record<DraftField, string>>): void {
  const isCount = (text: string) => /^\d{1,5}$/.test(text.trim()) && Number(text) <= 10_000;
  if (!isCount(least)) problems.least = "A number from 0 to 10,000.";
  if (!isCount(most)) problems.most = "A number from 0 to 10,000; 0 is without limit.";
  else if (Number(most) > 0 && Number(least) > Number(most)) problems.most = "Not below the least number.";
}

/** How many replicas a rule wants, in the words of the command line. */
export function countsText(rule: Pick<SchedulingView, "min_replicas" | "max_replicas" | "spread_all">): string {
  if (rule.spread_all) return "one on every node";
  if (rule.min_replicas === 0 && rule.max_replicas === 0) return "when asked";
  if (rule.min_replicas === rule.max_replicas) return `exactly ${rule.min_replicas}`;
  return rule.max_replicas === 0 ? `${rule.min_replicas} or more` : `${rule.min_replicas} to ${rule.max_replicas}`;
}

export function placesText(rule: Pick<SchedulingView, "node_selector" | "pinned_nodes" | "pinned_names">): string {
  const names = rule.pinned_names.length > 0 ? rule.pinned_names : rule.pinned_nodes;
  return [labelText(rule.node_selector), names.join(", ")].filter(Boolean).join(", ") || "any node";
}

export function idleText(seconds: number | null): string {
  if (seconds === null) return "as set";
  return seconds === 0 ? "never" : duration(seconds);
}

/** Whether the fleet has what the rule wants. */
export function isSatisfied(rule: SchedulingView): boolean {
  return rule.problem === "" && rule.loaded >= rule.min_replicas && rule.loading === 0;
}

/** Nodes on which replicas may be. */
export function allowedNodes<Node extends { readonly id: string; readonly labels: Readonly<Record<string, string>> }>(
  nodes: readonly Node[],
  selector: Readonly<Record<string, string>>,
  pinned: ReadonlySet<string>,
): readonly Node[] {
  return nodes.filter((node) => (pinned.size === 0 || pinned.has(node.id)) && hasLabels(node.labels, selector));
}

/** The command that sets the same, as far as commands can: nodes are pinned by another one. */
export function scaleCommand(ask: SchedulingAsk, nameOf: (id: string) => string): string {
  const counts = ask.spread_all
    ? ["--spread"]
    : ask.min_replicas || ask.max_replicas
      ? ["--min", String(ask.min_replicas), "--max", String(ask.max_replicas)]
      : ["--auto"];
  const labels = Object.entries(ask.node_selector ?? {}).flatMap(([key, value]) => ["--selector", `${key}=${value}`]);
  const idle = ask.idle_seconds === null ? "default" : ask.idle_seconds === 0 ? "never" : `${ask.idle_seconds}s`;
  const scale = shellCommand(["corral", "models", "scale", ask.model, ...counts, ...labels, "--idle", idle]);
  const pins = (ask.pinned_nodes ?? []).flatMap((id) => ["--node", nameOf(id)]);
  return pins.length === 0 ? scale : `${scale}\n${shellCommand(["corral", "models", "pin", ask.model, ...pins])}`;
}

interface Placed {
  readonly node: string;
  readonly to_node: string;
}

/** Consequences that name the node to which something goes, too: "a → b", or where it is added. */
export function withPlaces<Plan extends { readonly consequences: readonly Placed[] }>(plan: Plan): Plan {
  const placed = plan.consequences.map((one) => ({
    ...one,
    node: [one.node, one.to_node].filter(Boolean).join(" → "),
    to_node: "",
  }));
  return { ...plan, consequences: placed };
}
