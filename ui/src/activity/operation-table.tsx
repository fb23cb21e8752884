/** Operations as a table: what, how it stands, which nodes, who asked, when. */

import type { OperationRow } from "../live/topics";
import { count, eta, percent } from "../parts/format";
import { addressOf, PageLink } from "../parts/page-link";
import { Glyph, StatusPill } from "../parts/status-pill";
import { type Column, Table } from "../parts/table";
import { Age } from "../parts/time";
import { targetWord } from "../words.gen";
import styles from "./activity.module.css";
import { askerOf, titleOf } from "./operation-words";

const STATUSES = [
  "blocked",
  "error",
  "running_on_worker",
  "downloading",
  "queued",
  "cancelled",
  "superseded",
  "success",
];

const COLUMNS: readonly Column<OperationRow>[] = [
  {
    key: "what",
    title: "What",
    width: "minmax(100px, 1.2fr)",
    cell: (operation) => <PageLink href={addressOf.operation(operation.id)}>{titleOf(operation)}</PageLink>,
  },
  {
    key: "state",
    title: "State",
    width: "108px",
    cell: (operation) => <StatusPill subject="operation" state={operation.state} />,
  },
  {
    key: "nodes",
    title: "Nodes",
    width: "minmax(150px, 1.2fr)",
    from: "tablet",
    cell: (operation) => <Counts operation={operation} />,
  },
  {
    key: "progress",
    title: "Progress",
    width: "minmax(104px, 0.8fr)",
    from: "wide",
    cell: (operation) => <span className={styles.quiet}>{progressOf(operation)}</span>,
  },
  {
    key: "worst",
    title: "What stands in the way",
    width: "minmax(120px, 2.2fr)",
    from: "wide",
    cell: (operation) => <Worst operation={operation} />,
  },
  {
    key: "who",
    title: "Asked by",
    width: "minmax(72px, 1fr)",
    from: "tablet",
    cell: (operation) => <span title={askerOf(operation)}>{askerOf(operation)}</span>,
  },
  {
    key: "when",
    title: "When",
    width: "76px",
    isNumber: true,
    cell: (operation) => <Age at={operation.accepted_at} />,
  },
];

export function OperationTable({ operations, label }: { operations: readonly OperationRow[]; label: string }) {
  return <Table label={label} rows={operations} columns={COLUMNS} rowKey={(operation) => operation.id} />;
}

function Counts({ operation }: { operation: OperationRow }) {
  const here = STATUSES.filter((status) => operation.counts[status]);
  return (
    <span className={styles.counts}>
      {here.map((status) => {
        const word = targetWord(status, operation.verb);
        return (
          <span key={status} title={word.label}>
            <Glyph word={word} /> {count(operation.counts[status])}
            <span className="visually-hidden">{word.label}</span>
          </span>
        );
      })}
    </span>
  );
}

function progressOf(operation: OperationRow): string {
  if (operation.state !== "running") return "–";
  return [percent(operation.progress), eta(operation.seconds_left)].filter(Boolean).join(" · ");
}

function Worst({ operation }: { operation: OperationRow }) {
  const { worst } = operation;
  if (worst === null || worst.message === "") return <span className={styles.quiet}>–</span>;
  return (
    <span title={worst.message}>
      {worst.node}: {worst.message}
    </span>
  );
}
