/** A pull that is under way: every file with its bytes, the speed and what is left. Closing it loses nothing. */

import type { ReactNode } from "react";

import { progressText, shareOf } from "../activity/target-progress";
import { useItem, useTopic } from "../live/live";
import type { TargetRow } from "../live/topics";
import { ProgressBar } from "../parts/bar";
import { bytes } from "../parts/format";
import { addressOf, PageLink } from "../parts/page-link";
import { Loading } from "../parts/states";
import { StatusPill, TargetPill } from "../parts/status-pill";
import styles from "./pull.module.css";

interface PullProgressProps {
  readonly operation: string;
  readonly model: string;
  /** What is shown when all of it is done. */
  readonly done: ReactNode;
}

/** A pull, or a removal: both are one operation about a model. */
export function PullProgress({ operation: id, model, done }: PullProgressProps) {
  const operation = useItem("operations", id);
  const targets = useTopic(`operation:${id}`);
  const rows = [...targets.items.values()];
  if (rows.length === 0) return <Loading label="Waiting for the first news of it" />;
  return (
    <div className={styles.progress} aria-live="polite">
      {rows.map((target) => (
        <Place key={target.node_id} target={target} verb={operation?.verb ?? "pull"} model={model} />
      ))}
      {rows.every((target) => target.status === "success") && done}
      <PageLink href={addressOf.operation(id)}>Open it in Activity</PageLink>
    </div>
  );
}

function Place({ target, verb, model }: { target: TargetRow; verb: string; model: string }) {
  const isMoving = target.status === "downloading";
  const where = target.node_id.startsWith("store:") ? "" : ` on ${target.node_name}`;
  return (
    <div className={styles.store}>
      <div className={styles.storeHead}>
        <TargetPill status={target.status} verb={verb} />
        <span>
          {model}
          {where}
        </span>
        {isMoving && <span className={styles.quiet}>{amount(target)}</span>}
      </div>
      {isMoving && <ProgressBar name={`${verb} of ${model}${where}`} percentage={shareOf(target)} />}
      {target.message !== "" && <p className={styles.quiet}>{target.message}</p>}
      <ul className={styles.fileRows} aria-label="Files">
        {target.files.map((file) => (
          <FileRow key={file.name} file={file} />
        ))}
      </ul>
    </div>
  );
}

function amount(target: TargetRow): string {
  if (target.total_bytes === 0 && target.percentage === 0) return "getting ready";
  return progressText(target);
}

function FileRow({ file }: { file: TargetRow["files"][number] }) {
  const share = file.total_bytes > 0 ? (100 * file.current_bytes) / file.total_bytes : null;
  return (
    <li className={styles.fileRow}>
      <StatusPill subject="file" state={file.state} />
      <span className={styles.fileName} title={file.name}>
        {file.name}
      </span>
      <ProgressBar name={file.name} percentage={file.state === "done" ? 100 : share} />
      <span className={styles.number}>
        {file.total_bytes > 0 ? `${bytes(file.current_bytes)} / ${bytes(file.total_bytes)}` : bytes(file.current_bytes)}
      </span>
    </li>
  );
}
