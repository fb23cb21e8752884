/** An act on backends: what is asked, of which nodes, and the command that asks the same. Pure. */

import type { Schema } from "../api/client";
import { plural } from "../parts/format";
import { hasLabels, type Labels, labelText, readLabels } from "../parts/labels";
import { shellCommand } from "../parts/shell-words";

export type Verb = "install" | "upgrade" | "delete";
export type Reach = "all" | "labels" | "nodes";
export type OperationAsk = Schema<"OperationAsk">;
type Plan = Schema<"Plan">;
type Planned = Schema<"PlannedView">;

/** What somebody has chosen so far. */
export interface Choice {
  readonly verb: Verb;
  readonly backend: string;
  /** Where to install it from, instead of a gallery; then `backend` is what it shall be called. */
  readonly uri: string;
  readonly reach: Reach;
  readonly labels: string;
  readonly nodes: ReadonlySet<string>;
  readonly isForced: boolean;
}

export interface ChoosableNode {
  readonly id: string;
  readonly name: string;
  readonly kind: string;
  readonly status: string;
  readonly labels: Labels;
}

export function choiceOf(verb: Verb, backend: string, nodes: readonly string[] = []): Choice {
  const reach = nodes.length > 0 ? "nodes" : "all";
  return { verb, backend, uri: "", reach, labels: "", nodes: new Set(nodes), isForced: false };
}

/** The choice that asks for what somebody else proposes, such as the mending of drift. */
export function choiceOfAsk(ask: OperationAsk): Choice {
  const verb = ask.verb === "upgrade" || ask.verb === "delete" ? ask.verb : "install";
  const reach = ask.nodes.length > 0 ? "nodes" : Object.keys(ask.labels).length > 0 ? "labels" : "all";
  return {
    verb,
    backend: ask.backend || ask.name,
    uri: ask.uri,
    reach,
    labels: labelText(ask.labels),
    nodes: new Set(ask.nodes),
    isForced: ask.force,
  };
}

/** The nodes that an act may mean: agents have no backends, and a pending node is asked nothing. */
export function choosable<Node extends ChoosableNode>(nodes: Iterable<Node>): readonly Node[] {
  return [...nodes].filter((node) => node.kind !== "agent" && node.status !== "pending");
}

/** Which of them are meant now; the count beside the choice follows the fleet. */
export function meant<Node extends ChoosableNode>(choice: Choice, nodes: readonly Node[]): readonly Node[] {
  if (choice.reach === "all") return nodes;
  if (choice.reach === "nodes") return nodes.filter((node) => choice.nodes.has(node.id));
  const { labels, problem } = readLabels(choice.labels);
  return problem === "" ? nodes.filter((node) => hasLabels(node.labels, labels)) : [];
}

/** What is wrong with the choice, as a sentence; empty when a plan can be asked for. */
export function choiceProblem(choice: Choice, nodes: readonly ChoosableNode[]): string {
  if (choice.backend.trim() === "") return "Name a backend.";
  const labels = readLabels(choice.labels);
  if (choice.reach === "labels" && labels.problem !== "") return labels.problem;
  if (choice.reach === "labels" && Object.keys(labels.labels).length === 0) return "Type a label, such as zone=a.";
  if (choice.reach === "nodes" && choice.nodes.size === 0) return "Tick at least one node.";
  return meant(choice, nodes).length === 0 ? "No node is meant." : "";
}

export function askOf(choice: Choice): OperationAsk {
  const isByUri = choice.verb === "install" && choice.uri !== "";
  return {
    verb: choice.verb,
    backend: isByUri ? "" : choice.backend.trim(),
    uri: isByUri ? choice.uri : "",
    name: isByUri ? choice.backend.trim() : "",
    alias: "",
    galleries: "",
    force: choice.verb === "install" && choice.isForced,
    nodes: choice.reach === "nodes" ? [...choice.nodes] : [],
    labels: choice.reach === "labels" ? readLabels(choice.labels).labels : {},
    plan_hash: "",
  };
}

/** The command that asks the same. Nodes are named, since that is how people know them. */
export function commandOf(ask: OperationAsk, nameOf: (id: string) => string): string {
  const labels = Object.entries(ask.labels).flatMap(([key, value]) => ["--label", `${key}=${value}`]);
  const nodes = ask.nodes.flatMap((id) => ["--node", nameOf(id)]);
  const what = ask.uri === "" ? [ask.backend] : ["--uri", ask.uri, "--name", ask.name];
  return shellCommand([
    "corral",
    "backends",
    ask.verb,
    ...what,
    ...labels,
    ...nodes,
    ...(ask.force ? ["--force"] : []),
  ]);
}

export function titleOf(choice: Choice): string {
  const verb = VERBS[choice.verb];
  return choice.backend === "" ? `${verb} a backend` : `${verb} ${choice.backend}`;
}

export const VERBS: Readonly<Record<Verb, string>> = { install: "Install", upgrade: "Upgrade", delete: "Delete" };

/** Which nodes are meant, in words: "all nodes", "nodes with zone=a", "3 nodes". */
export function reachText(choice: Choice): string {
  if (choice.reach === "all") return "all nodes";
  if (choice.reach === "nodes") return plural(choice.nodes.size, "node");
  return `nodes with ${labelText(readLabels(choice.labels).labels)}`;
}

export type Verdict = "fits" | "unknown" | "blocked" | "already";

/** The order in which a plan is read: what needs a look first. */
export const VERDICTS: readonly Verdict[] = ["blocked", "unknown", "fits", "already"];

export function verdictOf(planned: Planned): Verdict {
  if (planned.blocked !== "") return "blocked";
  if (planned.reached) return "already";
  return planned.unknown === "" ? "fits" : "unknown";
}

export interface VerdictGroup {
  readonly verdict: Verdict;
  readonly items: readonly Planned[];
}

export function verdictGroups(items: readonly Planned[]): readonly VerdictGroup[] {
  return VERDICTS.map((verdict) => ({ verdict, items: items.filter((item) => verdictOf(item) === verdict) })).filter(
    (group) => group.items.length > 0,
  );
}

const REACHED: Readonly<Record<Verb, string>> = {
  install: "it is there",
  upgrade: "it has the newest",
  delete: "it is not there",
};
const AWAY = new Set(["offline", "unhealthy"]);

/** What is special about one node, in the words of the command line; the group and the act tell the rest. */
export function outcomeOf(planned: Planned, verb: Verb): string {
  if (planned.blocked !== "") return planned.blocked;
  if (planned.reached) return REACHED[verb];
  const later = AWAY.has(planned.node_status) ? "when it comes back" : "";
  return [later, planned.unknown].filter(Boolean).join("; ");
}

/** How many nodes something would be sent to. */
export function actingCount(plan: Plan): number {
  return plan.items.filter((item) => verdictOf(item) === "fits" || verdictOf(item) === "unknown").length;
}

/** "Delete vllm on 12 nodes". */
export function labelOf(choice: Choice, plan: Plan): string {
  return `${titleOf(choice)} on ${plural(actingCount(plan), "node")}`;
}

/** Why nothing can be done with this plan; null when something can. */
export function obstacleOf(plan: Plan): string | null {
  const [rule] = plan.rules;
  if (rule !== undefined) return "A fleet rule is in the way: change or delete it first.";
  if (actingCount(plan) > 0) return null;
  if (plan.items.some((item) => item.blocked !== "")) return "It is blocked everywhere that it is not done already.";
  return "There is nothing to do: every node is as it should be.";
}

/** The name to type before replicas that answer requests end; null where none do. */
export function nameToType(choice: Choice, plan: Plan): string | null {
  const isInUse = plan.replicas_end.some((replica) => replica.in_flight === null || replica.in_flight > 0);
  return isInUse ? choice.backend : null;
}

/** Bytes that all nodes together would fetch; null when nobody knows any of them. */
export function bytesToFetch(plan: Plan): number | null {
  const known = plan.items.map((item) => item.download_bytes).filter((size) => size !== null && size !== undefined);
  return known.length === 0 ? null : known.reduce((total, size) => total + size, 0);
}
