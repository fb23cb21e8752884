/** How an operation stands as a whole: pill, share, bytes, speed, what is left. */

import type { OperationRow } from "../live/topics";
import { ProgressBar } from "../parts/bar";
import { bytes, eta, percent, speed } from "../parts/format";
import { StatusPill } from "../parts/status-pill";
import styles from "./activity.module.css";

export function OperationState({ operation }: { operation: OperationRow }) {
  const isRunning = operation.state === "running";
  // The share is of all nodes; bytes are only told of those that fetch.
  const moved = operation.total_bytes
    ? `fetching ${bytes(operation.current_bytes)} of ${bytes(operation.total_bytes)}`
    : "";
  const words = [
    `${percent(operation.progress)} of all`,
    moved,
    speed(operation.bytes_per_second),
    eta(operation.seconds_left),
  ];
  return (
    <div className={styles.state}>
      <StatusPill subject="operation" state={operation.state} />
      {isRunning && (
        <>
          <div className={styles.whole}>
            <ProgressBar name="Progress of the whole operation" percentage={operation.progress} />
          </div>
          <span className={styles.quiet}>{words.filter(Boolean).join(" · ")}</span>
        </>
      )}
    </div>
  );
}
