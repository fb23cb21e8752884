/** The order of what needs somebody: by the rank of its kind, then severity, then age. As `corral status` prints it. */

import type { AttentionItem } from "../live/topics";

const SEVERITIES = ["alarm", "warning", "notice"];

export function inOrder(items: Iterable<AttentionItem>): AttentionItem[] {
  return [...items].sort(
    (one, other) =>
      (one.rank ?? 0) - (other.rank ?? 0) ||
      SEVERITIES.indexOf(one.severity) - SEVERITIES.indexOf(other.severity) ||
      (one.since ?? "").localeCompare(other.since ?? "") ||
      one.id.localeCompare(other.id),
  );
}
