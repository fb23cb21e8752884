/** One backend on one node, or on nodes that all have the same: its version, and what is wrong with it. */

import { plural, shortDigest } from "../parts/format";
import styles from "./backends.module.css";
import type { Cell } from "./matrix-rows";

export function MatrixCell({ cell, nodes }: { cell: Cell | undefined; nodes: number }) {
  if (cell === undefined) return <Absent />;
  return (
    <span className={styles.cell} title={titleOf(cell, nodes)}>
      {cell.isThere ? <span className={cell.isSystem ? styles.quiet : undefined}>{buildText(cell)}</span> : <Absent />}
      {cell.differs && (
        <span className={styles.differsMark}>
          <span aria-hidden="true">≠</span>
          <span className="visually-hidden">differs</span>
        </span>
      )}
      {cell.drifted > 0 && (
        <span className={styles.driftMark}>
          <span aria-hidden="true">△</span>
          <span className="visually-hidden">not as asked</span>
          {cell.drifted > 1 && <span> {cell.drifted}</span>}
        </span>
      )}
    </span>
  );
}

function Absent() {
  return (
    <span className={styles.absent}>
      <span className="visually-hidden">not there</span>
    </span>
  );
}

function buildText(cell: Cell): string {
  return cell.version || shortDigest(cell.digest) || (cell.isSystem ? "system" : "there");
}

function titleOf(cell: Cell, nodes: number): string {
  const parts = [
    cell.isThere ? `version ${cell.version || "not said"}` : "not there",
    cell.digest === "" ? "" : `digest ${shortDigest(cell.digest)}`,
    cell.isSystem ? "came with the machine" : "",
    cell.differs ? "most nodes have another build" : "",
    cell.drifted > 0 ? `not as asked on ${plural(cell.drifted, "node")} of ${nodes}` : "",
  ];
  return parts.filter(Boolean).join("; ");
}
