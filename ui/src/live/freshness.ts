/** How fresh what is shown is, as one word. Pure. */

import type { Connection } from "./store";

export const YELLOW_AFTER_MILLISECONDS = 3_000;
export const BANNER_AFTER_MILLISECONDS = 10_000;
/** Three beats of the stream. */
export const STALE_AFTER_MILLISECONDS = 30_000;

export type Freshness = "off" | "live" | "starting" | "late" | "lost" | "stale";

/** `late`: the dot turns yellow; `lost`: a banner says so; `stale`: values are veiled with their age. */
export function freshnessOf(connection: Connection, silentMilliseconds: number, now: number): Freshness {
  if (connection.state === "off") return "off";
  if (connection.state === "refused") return "stale";
  if (silentMilliseconds >= STALE_AFTER_MILLISECONDS) return "stale";
  if (connection.state === "open") return "live";
  const gone = now - connection.since;
  if (gone >= BANNER_AFTER_MILLISECONDS) return "lost";
  if (gone >= YELLOW_AFTER_MILLISECONDS) return "late";
  return connection.state === "connecting" ? "starting" : "live";
}
