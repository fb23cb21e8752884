/** Which nodes of the fleet are shown, and in which groups. Pure; the filters themselves are in the address. */

import type { NodeRow } from "../live/topics";

export interface FleetFilter {
  /** Any of these; none mean all. */
  readonly statuses: readonly string[];
  readonly kind: string;
  /** `key=value`, or a key alone. */
  readonly label: string;
  /** All of them must be found, in lower case. */
  readonly words: readonly string[];
  readonly hasShortDisk: boolean;
}

/** Less free than this is short: hardly any model fits there. */
const SHORT_DISK_BYTES = 1024 ** 3;

export function readFilter(get: (name: string) => string): FleetFilter {
  return {
    statuses: get("status").split(",").filter(Boolean),
    kind: get("kind"),
    label: get("label"),
    words: get("text").toLowerCase().split(/\s+/).filter(Boolean),
    hasShortDisk: get("disk") === "short",
  };
}

export function isShown(node: NodeRow, filter: FleetFilter): boolean {
  return (
    (filter.statuses.length === 0 || filter.statuses.includes(node.status)) &&
    (filter.kind === "" || node.kind === filter.kind) &&
    hasLabel(node, filter.label) &&
    hasWords(node, filter.words) &&
    (!filter.hasShortDisk || (node.disk.free !== null && node.disk.free < SHORT_DISK_BYTES))
  );
}

function hasLabel(node: NodeRow, label: string): boolean {
  if (label === "") return true;
  const [key = "", ...value] = label.split("=");
  return value.length === 0 ? key in node.labels : node.labels[key] === value.join("=");
}

/** Every word must be in the name, the address, a label or a model that runs there. */
function hasWords(node: NodeRow, words: readonly string[]): boolean {
  if (words.length === 0) return true;
  const labels = Object.entries(node.labels).map(([key, value]) => `${key}=${value}`);
  const all = [node.name, node.address, ...labels, ...node.replicas.map((replica) => replica.model)]
    .join(" ")
    .toLowerCase();
  return words.every((word) => all.includes(word));
}

/** The worst first: what needs somebody is at the beginning of every list. */
const STATUS_ORDER = ["unhealthy", "offline", "pending", "draining", "healthy"];
const collator = new Intl.Collator("en", { numeric: true });

export function byTrouble(one: NodeRow, other: NodeRow): number {
  const difference = STATUS_ORDER.indexOf(one.status) - STATUS_ORDER.indexOf(other.status);
  return difference || compareNames(one.name, other.name);
}

const sortKeys = new Map<string, string>();
const MOST_SORT_KEYS = 50_000;

/** Puts node-2 before node-10, quickly enough to do it for ten thousand nodes while they change. */
function compareNames(one: string, other: string): number {
  const [first, second] = [sortKey(one), sortKey(other)];
  if (first === second) return 0;
  return first < second ? -1 : 1;
}

/** A name whose numbers all have the same width, so that plain comparison is right. */
function sortKey(name: string): string {
  const known = sortKeys.get(name);
  if (known !== undefined) return known;
  if (sortKeys.size >= MOST_SORT_KEYS) sortKeys.clear();
  const key = name.toLowerCase().replace(/\d+/g, (digits) => digits.padStart(12, "0"));
  sortKeys.set(name, key);
  return key;
}

/** Whether every node is where it was, however much else has changed. */
export function haveSamePlaces(before: readonly NodeRow[], after: readonly NodeRow[], key: string): boolean {
  return (
    before.length === after.length &&
    after.every((node, index) => {
      const earlier = before[index];
      if (earlier === node) return true;
      return earlier?.id === node.id && earlier.name === node.name && earlier.labels[key] === node.labels[key];
    })
  );
}

export interface NodeGroup {
  readonly name: string;
  readonly nodes: readonly NodeRow[];
}

/** Labels that every machine has of its own, and that no two share or that say nothing of a place. */
const NOT_FOR_GROUPS = new Set(["node.name", "node.replica-slots"]);
const OTHERS = "without this label";
/** In a fleet of so few, groups of one are no nuisance. */
const FEW = 12;

/** Keys that make useful groups: labels that some nodes share. */
export function groupKeys(nodes: Iterable<NodeRow>): string[] {
  const values = new Map<string, Set<string>>();
  let count = 0;
  for (const node of nodes) {
    count += 1;
    for (const [key, value] of Object.entries(node.labels)) values.set(key, (values.get(key) ?? new Set()).add(value));
  }
  return [...values]
    .filter(([key, different]) => !NOT_FOR_GROUPS.has(key) && (different.size < count || count <= FEW))
    .map(([key]) => key)
    .sort();
}

/** Nodes by the value of a label, or all as one group. Each has its place whatever its status is: people learn where a
 * machine is, and nothing jumps when one of them fails. */
export function groupNodes(nodes: readonly NodeRow[], key: string): NodeGroup[] {
  const sorted = nodes.toSorted((one, other) => compareNames(one.name, other.name));
  if (key === "") return [{ name: "", nodes: sorted }];
  const groups = Map.groupBy(sorted, (node) => node.labels[key] ?? OTHERS);
  return [...groups]
    .map(([name, members]) => ({ name, nodes: members }))
    .sort(
      (one, other) =>
        Number(one.name === OTHERS) - Number(other.name === OTHERS) || collator.compare(one.name, other.name),
    );
}

/** The memory that decides what fits: that of the GPUs, or the machine's own where there are none. */
export function memoryOf(node: NodeRow): { readonly name: string; readonly share: NodeRow["vram"] } {
  return node.vram.total ? { name: "VRAM", share: node.vram } : { name: "RAM", share: node.ram };
}
