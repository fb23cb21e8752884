/** How fresh the page is: a dot, a word, and since when. */

import { useNow } from "../live/clock";
import { type Freshness, freshnessOf } from "../live/freshness";
import { silence, useConnection } from "../live/live";
import { classes } from "../parts/classes";
import { coarse } from "../parts/format";
import styles from "./connection-dot.module.css";

const LOOKS: Readonly<Record<Exclude<Freshness, "off">, { glyph: string; word: string; tone: string }>> = {
  live: { glyph: "●", word: "Live", tone: "green" },
  starting: { glyph: "◐", word: "Connecting", tone: "blue" },
  late: { glyph: "◔", word: "Reconnecting", tone: "yellow" },
  lost: { glyph: "✕", word: "Disconnected", tone: "red" },
  stale: { glyph: "✕", word: "Not current", tone: "red" },
};

export function ConnectionDot() {
  const freshness = useFreshness();
  if (freshness === "off") return null;
  const look = LOOKS[freshness];
  const quiet = Math.floor(silence() / 1000);
  const sentence =
    freshness === "live" ? `Live; heard ${coarse(quiet)} ago` : `${look.word}; last heard ${coarse(quiet)} ago`;
  return (
    <span className={classes(styles.dot, styles[look.tone])} role="status" title={sentence}>
      <span aria-hidden="true">{look.glyph}</span>
      <span className={styles.word}>
        {look.word}
        {freshness !== "live" && freshness !== "starting" && ` ${coarse(quiet)}`}
      </span>
    </span>
  );
}

export function useFreshness(): Freshness {
  const connection = useConnection();
  useNow();
  return freshnessOf(connection, silence(), Date.now());
}
