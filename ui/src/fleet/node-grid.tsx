/** One button for each node, in groups. A node that changes is drawn again alone. */

import { memo } from "react";

import { useItem } from "../live/live";
import { sharesOf } from "../parts/bar";
import { classes } from "../parts/classes";
import { useFilters } from "../parts/filters";
import { bytes, count, plural } from "../parts/format";
import { Glyph } from "../parts/status-pill";
import { stateWord } from "../words.gen";
import styles from "./node-grid.module.css";
import { memoryOf, type NodeGroup } from "./selection";

/** With more, cells have the name only. */
const MOST_WITH_MEMORY = 400;

interface GridProps {
  readonly groups: readonly NodeGroup[];
  readonly count: number;
}

export const NodeGrid = memo(function NodeGrid({ groups, count: number }: GridProps) {
  const filters = useFilters();
  const chosen = filters.get("node");
  return (
    <div className={styles.groups}>
      {groups.map((group) => (
        <section key={group.name} aria-label={group.name || "All nodes"} className={styles.group}>
          {group.name !== "" && (
            <h3 className={styles.head}>
              {group.name} <span className={styles.quiet}>{plural(group.nodes.length, "node")}</span>
            </h3>
          )}
          <div className={classes(styles.grid, number > MOST_WITH_MEMORY && styles.dense)}>
            {group.nodes.map((node) => (
              <NodeCell
                key={node.id}
                id={node.id}
                isChosen={node.id === chosen}
                isDense={number > MOST_WITH_MEMORY}
                choose={filters.set}
              />
            ))}
          </div>
        </section>
      ))}
    </div>
  );
});

interface CellProps {
  readonly id: string;
  readonly isChosen: boolean;
  readonly isDense: boolean;
  readonly choose: (name: string, value: string) => void;
}

const NodeCell = memo(function NodeCell({ id, isChosen, isDense, choose }: CellProps) {
  const node = useItem("nodes", id);
  if (node === undefined) return null;
  const word = stateWord("node", node.status);
  const memory = memoryOf(node);
  const models = [...new Set(node.replicas.map((replica) => replica.model))];
  return (
    <button
      type="button"
      className={classes(styles.cell, styles[word.tone], isChosen && styles.chosen)}
      aria-pressed={isChosen}
      title={[`${node.name}: ${word.label}`, node.reason, models.join(", ")].filter(Boolean).join("\n")}
      onClick={() => choose("node", isChosen ? "" : id)}
    >
      <span className={styles.line}>
        <Glyph word={word} />
        <span className={styles.name}>{node.name}</span>
        <span className="visually-hidden">{word.label}</span>
        {!isDense && node.in_flight !== null && node.in_flight > 0 && (
          <span className={styles.busy}>{count(node.in_flight)}</span>
        )}
      </span>
      {!isDense && <MiniBar share={memory.share} />}
      {!isDense && (
        <span className={styles.facts}>
          <span className={styles.models}>{models.join(", ") || "no models"}</span>
          <span>{memory.share.total ? bytes(memory.share.total) : ""}</span>
        </span>
      )}
    </button>
  );
});

function MiniBar({ share }: { share: { total: number | null; used: number | null; reserved: number | null } }) {
  const parts = sharesOf({ total: share.total || 1, used: share.used ?? 0, reserved: share.reserved ?? 0 });
  return (
    <svg className={styles.bar} viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">
      <rect className={styles.free} width="100" height="4" />
      <rect className={styles.reserved} x={parts.used} width={parts.reserved} height="4" />
      <rect className={styles.used} width={parts.used} height="4" />
    </svg>
  );
}
