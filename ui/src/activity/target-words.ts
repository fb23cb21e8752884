/** How a target stands, as a phrase. The same phrases as the command line prints. Pure. */

import type { TargetRow } from "../live/topics";
import { PROOFS } from "../words.gen";

const FINAL = new Set(["success", "cancelled", "superseded"]);

/** What the node was asked, and has not answered. */
const ASKED = new Set(["downloading", "running_on_worker"]);
const SILENT = new Set(["unhealthy", "offline"]);

/** `nodeStatus` is how the node stands now; empty where nobody knows. */
export function situationOf(target: TargetRow, nodeStatus = ""): string {
  if (target.waits_for_node && !FINAL.has(target.status)) return waiting(target);
  if (ASKED.has(target.status) && SILENT.has(nodeStatus)) return "the node is silent; it goes on when the node is back";
  if (target.status === "success") return proofOf(target);
  return target.message || target.phase || "";
}

function waiting({ message }: TargetRow): string {
  return `waits for the node to come back${message === "" ? "" : `; last: ${message}`}`;
}

/** What proves it, by the rung that the node's report reached. */
function proofOf({ reason_fields, message }: TargetRow): string {
  const rung = reason_fields?.["rung"];
  return (typeof rung === "string" ? PROOFS[rung] : undefined) ?? message;
}
