/** How far a node is, in words and as a share. One scale: where bytes are told, the share is theirs. Pure. */

import type { TargetRow } from "../live/topics";
import { bytes, eta, percent, speed } from "../parts/format";

type Told = Pick<
  TargetRow,
  "percentage" | "current_bytes" | "total_bytes" | "bytes_per_second" | "seconds_left" | "status"
>;

/** The server's percentage also counts the unpacking; beside bytes of the download it would seem wrong. */
export function shareOf(target: Told): number {
  if (target.status === "success" || !target.total_bytes) return target.percentage;
  return Math.min(100, (100 * target.current_bytes) / target.total_bytes);
}

export function progressText(target: Told): string {
  if (target.total_bytes && target.current_bytes >= target.total_bytes) return `${bytes(target.total_bytes)} fetched`;
  const moved = target.total_bytes ? `${bytes(target.current_bytes)} of ${bytes(target.total_bytes)}` : "";
  const words = [percent(shareOf(target)), moved, speed(target.bytes_per_second), eta(target.seconds_left)];
  return words.filter(Boolean).join(" · ");
}
