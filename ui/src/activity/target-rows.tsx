/** One row for each node of an operation: how it stands, how far it is, why, and another try. */

import { useNow } from "../live/clock";
import { useItem } from "../live/live";
import type { TargetRow } from "../live/topics";
import { ProgressBar } from "../parts/bar";
import { Button } from "../parts/button";
import { classes } from "../parts/classes";
import { bytes, duration } from "../parts/format";
import { addressOf, PageLink } from "../parts/page-link";
import { TargetPill } from "../parts/status-pill";
import { byNumber, byText, type Column, Table } from "../parts/table";
import { Age } from "../parts/time";
import styles from "./activity.module.css";
import { byTrouble, canRetry } from "./target-order";
import { progressText, shareOf } from "./target-progress";
import { situationOf } from "./target-words";

interface RowsProps {
  readonly targets: readonly TargetRow[];
  readonly verb: string;
  /** Offered where another try may help; without it rows only tell. */
  readonly onRetry?: (target: TargetRow) => void;
}

const LINES = 44;

export function TargetRows({ targets, verb, onRetry }: RowsProps) {
  return (
    <Table
      label="Nodes of this operation"
      rows={targets}
      rowKey={(target) => target.node_id}
      columns={columnsFor(verb, onRetry)}
      order={{ key: "state", isDescending: false }}
      rowHeight={LINES}
    />
  );
}

function columnsFor(verb: string, onRetry: RowsProps["onRetry"]): Column<TargetRow>[] {
  return [
    {
      key: "node",
      title: "Node",
      width: "minmax(68px, 1fr)",
      cell: (target) => <Where target={target} />,
      sort: byText((target) => target.node_name),
    },
    {
      key: "state",
      title: "State",
      width: "118px",
      cell: (target) => <TargetPill status={target.status} verb={verb} />,
      sort: byTrouble,
    },
    {
      key: "progress",
      title: "Progress",
      width: "minmax(140px, 1.8fr)",
      from: "tablet",
      cell: (target) => <Progress target={target} />,
      sort: byNumber(shareOf),
    },
    {
      key: "message",
      title: "Why, or proof",
      width: "minmax(96px, 2.4fr)",
      cell: (target) => <Message target={target} />,
    },
    {
      key: "tries",
      title: "Tries",
      width: "112px",
      from: "tablet",
      isNumber: true,
      cell: (target) => <Tries target={target} />,
      sort: byNumber((target) => target.attempts),
    },
    {
      key: "changed",
      title: "Last sign",
      width: "84px",
      from: "tablet",
      isNumber: true,
      cell: (target) => <Age at={target.changed_at} />,
      sort: byText((target) => target.changed_at),
    },
    ...(onRetry === undefined ? [] : [retryColumn(onRetry)]),
  ];
}

function retryColumn(onRetry: (target: TargetRow) => void): Column<TargetRow> {
  return {
    key: "retry",
    title: "",
    width: "72px",
    from: "tablet",
    cell: (target) =>
      canRetry(target) && (
        <Button isSmall onPress={() => onRetry(target)} aria-label={`Retry on ${target.node_name}`}>
          Retry
        </Button>
      ),
  };
}

/** A pull goes into a store, which is no node and has no page. */
function Where({ target }: { target: TargetRow }) {
  if (target.node_id.startsWith("store:")) return <span>{target.node_name}</span>;
  return <PageLink href={addressOf.node(target.node_id)}>{target.node_name}</PageLink>;
}

function Progress({ target }: { target: TargetRow }) {
  if (target.status === "success")
    return <span className={styles.quiet}>{target.total_bytes ? bytes(target.total_bytes) : ""}</span>;
  if (target.status !== "downloading" && target.status !== "running_on_worker")
    return <span className={styles.quiet}>–</span>;
  return (
    <div className={styles.progress}>
      <ProgressBar name={`Progress on ${target.node_name}`} percentage={shareOf(target)} />
      <span className={styles.small}>{progressText(target)}</span>
    </div>
  );
}

/** How often it failed, and when it is tried again by itself. */
function Tries({ target }: { target: TargetRow }) {
  const now = useNow();
  if (!target.attempts) return <span className={styles.quiet}>–</span>;
  const next = target.next_try_at ? Math.max(0, (Date.parse(target.next_try_at) - now) / 1000) : null;
  return (
    <div className={styles.progress}>
      <span>{target.attempts}</span>
      {next !== null && <span className={styles.small}>{next > 0 ? `again in ${duration(next)}` : "again now"}</span>}
    </div>
  );
}

function Message({ target }: { target: TargetRow }) {
  const node = useItem("nodes", target.node_id);
  const file = target.status === "downloading" && target.file_name ? target.file_name : "";
  const said = situationOf(target, node?.status);
  const text = said === target.status ? "" : said; // the state says it already
  return (
    <div className={styles.message}>
      {(text !== "" || file === "") && (
        <span className={classes(styles.clamp, target.status === "success" && styles.quiet)} title={text}>
          {text || <span className={styles.quiet}>–</span>}
        </span>
      )}
      {file !== "" && (
        <span className={styles.file} title={file}>
          {file}
        </span>
      )}
    </div>
  );
}
