/** What is under way, in one line: how many operations, and the one that needs a look most. */

import { Link } from "wouter";

import { useTopic } from "../live/live";
import type { OperationRow } from "../live/topics";
import { percent, plural } from "../parts/format";
import { StatusPill } from "../parts/status-pill";
import styles from "./activity-strip.module.css";

const TROUBLE = ["failed", "running", "waiting"];

export function ActivityStrip() {
  const { items } = useTopic("operations");
  const open = openOperations(items.values());
  const worst = open[0];
  if (worst === undefined) return <span className={styles.none} />;
  return (
    <Link href={`/activity/${encodeURIComponent(worst.id)}`} className={styles.strip}>
      <span className={styles.count}>{plural(open.length, "operation")}</span>
      <StatusPill subject="operation" state={worst.state} />
      <span className={styles.what}>
        {worst.verb} {worst.backend}
      </span>
      {worst.state === "running" && <span className={styles.quiet}>{percent(worst.progress)}</span>}
    </Link>
  );
}

/** Operations that are not over, the worst first. */
export function openOperations(operations: Iterable<OperationRow>): OperationRow[] {
  return [...operations]
    .filter((operation) => operation.state === "running" || operation.state === "waiting")
    .sort((one, other) => rank(one) - rank(other) || other.accepted_at.localeCompare(one.accepted_at));
}

function rank(operation: OperationRow): number {
  const state = operation.worst === null ? operation.state : "failed";
  return TROUBLE.indexOf(state);
}
