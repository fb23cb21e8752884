/** Nodes as a table: one line each, sortable, however many there are. */

import type { NodeRow } from "../live/topics";
import { MemoryBar } from "../parts/bar";
import { useFilters } from "../parts/filters";
import { bytes, count } from "../parts/format";
import { addressOf, PageLink } from "../parts/page-link";
import { StatusPill } from "../parts/status-pill";
import { byNumber, byText, type Column, Table } from "../parts/table";
import { Age } from "../parts/time";
import styles from "./fleet.module.css";
import { byTrouble } from "./selection";

const COLUMNS: readonly Column<NodeRow>[] = [
  {
    key: "name",
    title: "Name",
    width: "minmax(110px, 1.4fr)",
    cell: (node) => <PageLink href={addressOf.node(node.id)}>{node.name}</PageLink>,
    sort: byText((node) => node.name),
  },
  {
    key: "status",
    title: "Status",
    width: "112px",
    cell: (node) => <StatusPill subject="node" state={node.status} />,
    sort: byTrouble,
  },
  {
    key: "why",
    title: "Why",
    width: "minmax(120px, 2fr)",
    from: "wide",
    cell: (node) => (node.reason ? <span title={node.reason}>{node.reason}</span> : <None />),
  },
  {
    key: "vram",
    title: "VRAM",
    width: "minmax(150px, 1fr)",
    from: "tablet",
    cell: (node) => <MemoryBar name="VRAM" share={node.vram} isCompact />,
    sort: byNumber((node) => node.vram.total),
  },
  {
    key: "ram",
    title: "RAM",
    width: "minmax(150px, 1fr)",
    from: "wide",
    cell: (node) => <MemoryBar name="RAM" share={node.ram} isCompact />,
    sort: byNumber((node) => node.ram.total),
  },
  {
    key: "disk",
    title: "Disk free",
    width: "84px",
    from: "wide",
    isNumber: true,
    cell: (node) => bytes(node.disk.free),
    sort: byNumber((node) => node.disk.free),
  },
  {
    key: "models",
    title: "Models",
    width: "minmax(80px, 1.4fr)",
    from: "tablet",
    cell: (node) => [...new Set(node.replicas.map((replica) => replica.model))].join(", ") || <None />,
    sort: byNumber((node) => node.replicas.length),
  },
  {
    key: "busy",
    title: "In flight",
    width: "70px",
    isNumber: true,
    cell: (node) => count(node.in_flight),
    sort: byNumber((node) => node.in_flight),
  },
  {
    key: "heard",
    title: "Heard",
    width: "88px",
    from: "tablet",
    isNumber: true,
    cell: (node) => <Age at={node.heard_at} />,
    sort: byText((node) => node.heard_at ?? ""),
  },
];

function None() {
  return <span className={styles.quiet}>–</span>;
}

export function NodeTable({ nodes }: { nodes: readonly NodeRow[] }) {
  const filters = useFilters();
  const chosen = filters.get("node");
  return (
    <Table
      label="Nodes"
      rows={nodes}
      columns={COLUMNS}
      rowKey={(node) => node.id}
      order={{ key: "status", isDescending: false }}
      onRow={(node) => filters.set("node", node.id === chosen ? "" : node.id)}
      isMarked={(node) => node.id === chosen}
    />
  );
}
