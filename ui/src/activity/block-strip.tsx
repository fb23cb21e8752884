/** One block for each node, sorted by trouble: a thousand of them in a few lines. */

import type { TargetRow } from "../live/topics";
import { count } from "../parts/format";
import { Glyph } from "../parts/status-pill";
import { targetWord } from "../words.gen";
import styles from "./activity.module.css";
import { byTrouble, countsOf } from "./target-order";

/** With more blocks than this, each is smaller. */
const MANY = 120;

export function BlockStrip({ targets, verb }: { targets: readonly TargetRow[]; verb: string }) {
  const sorted = targets.toSorted(byTrouble);
  return (
    <div className={styles.strip}>
      <ul className={styles.legend} aria-label="Nodes by state">
        {countsOf(targets).map(({ status, count: number }) => (
          <li key={status}>
            <Glyph word={targetWord(status, verb)} /> <strong>{count(number)}</strong>{" "}
            {targetWord(status, verb).label.toLowerCase()}
          </li>
        ))}
      </ul>
      <div className={targets.length > MANY ? styles.manyBlocks : styles.blocks} aria-hidden="true">
        {sorted.map((target) => (
          <span
            key={target.node_id}
            className={styles.block}
            data-tone={targetWord(target.status, verb).tone}
            title={`${target.node_name}: ${targetWord(target.status, verb).label}`}
          />
        ))}
      </div>
    </div>
  );
}
