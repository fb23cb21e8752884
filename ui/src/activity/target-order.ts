/** In which order targets are shown, and what can be done about them. Pure. */

import type { TargetRow } from "../live/topics";

/** The worst first, as everywhere. */
const ORDER = ["blocked", "error", "running_on_worker", "downloading", "queued", "cancelled", "superseded", "success"];
/** What another try may help. */
const WORTH_A_RETRY = new Set(["error", "blocked", "running_on_worker"]);
/** What is not over, so that it can be taken back. */
const OPEN = new Set(["queued", "downloading", "running_on_worker", "error", "blocked"]);
/** What was sent to the node and may have its effect whatever is decided now. */
const SENT = new Set(["downloading", "running_on_worker"]);

const collator = new Intl.Collator("en", { numeric: true });

export function byTrouble(one: TargetRow, other: TargetRow): number {
  const difference = rankOf(one.status) - rankOf(other.status);
  return difference || collator.compare(one.node_name, other.node_name);
}

function rankOf(status: string): number {
  const rank = ORDER.indexOf(status);
  return rank < 0 ? ORDER.length : rank;
}

export function canRetry(target: TargetRow): boolean {
  return WORTH_A_RETRY.has(target.status);
}

export function isOpen(target: TargetRow): boolean {
  return OPEN.has(target.status);
}

/** Whether a cancel comes too late to be sure: the node may still finish. */
export function mayStillFinish(target: TargetRow): boolean {
  return SENT.has(target.status);
}

/** How many targets stand how, in the order of trouble. */
export function countsOf(
  targets: readonly TargetRow[],
): readonly { readonly status: string; readonly count: number }[] {
  const counts = new Map<string, number>();
  for (const { status } of targets) counts.set(status, (counts.get(status) ?? 0) + 1);
  return [...counts]
    .map(([status, count]) => ({ status, count }))
    .sort((one, other) => rankOf(one.status) - rankOf(other.status));
}
