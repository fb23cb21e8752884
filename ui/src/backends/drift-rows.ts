/** What is not as asked: rows to show, and the fewest operations that mend it. Pure. */

import type { OperationAsk } from "./acts";

export interface DriftItem {
  readonly node_id: string;
  readonly node_name: string;
  readonly backend: string;
  readonly wanted: string;
  readonly has: string;
  readonly since: string | null;
  readonly why: string;
  /** The fleet rule that wants it; empty where an operation does. */
  readonly rule: string;
  /** The operation that asked for it; empty or missing where none did. */
  readonly operation_id?: string;
  readonly fix: { readonly label: string; readonly operation: OperationAsk } | null;
}

export function driftKey(item: DriftItem): string {
  return `${item.node_id} ${item.backend} ${item.rule}`;
}

export interface DriftQuery {
  readonly text: string;
  readonly node: string;
  readonly backend: string;
}

export function findDrift(items: readonly DriftItem[], query: DriftQuery): readonly DriftItem[] {
  const word = query.text.trim().toLowerCase();
  const words = (item: DriftItem) =>
    [item.node_name, item.backend, item.why, item.rule, item.has].join("\n").toLowerCase();
  return items.filter(
    (item) =>
      (query.node === "" || item.node_id === query.node || item.node_name === query.node) &&
      (query.backend === "" || item.backend === query.backend) &&
      (word === "" || words(item).includes(word)),
  );
}

/** One operation for all nodes that need the same: what is mended together is watched together. */
export function fixesOf(items: readonly DriftItem[]): readonly OperationAsk[] {
  const fixes = new Map<string, OperationAsk>();
  for (const { fix } of items) {
    if (fix === null) continue;
    const { nodes, ...what } = fix.operation;
    const key = JSON.stringify(Object.entries(what).toSorted(([one], [other]) => one.localeCompare(other)));
    const before = fixes.get(key);
    fixes.set(key, { ...fix.operation, nodes: [...new Set([...(before?.nodes ?? []), ...nodes])] });
  }
  return [...fixes.values()];
}
