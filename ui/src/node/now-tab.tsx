/** What the node does now: memory, GPUs, replicas with their requests, a drain, and what it is asked to do. */

import { useNodeExtra, useTopic } from "../live/live";
import type { NodeRow, NodeWork, ReplicaRow } from "../live/topics";
import { MemoryBar, ProgressBar } from "../parts/bar";
import { bytes, count, percent, plural } from "../parts/format";
import { gpuText } from "../parts/hardware";
import { Fact, Facts, Section } from "../parts/page";
import { addressOf, PageLink } from "../parts/page-link";
import { Empty } from "../parts/states";
import { StatusPill, TargetPill } from "../parts/status-pill";
import { type Column, Table } from "../parts/table";
import { Age } from "../parts/time";
import { useMay } from "../shell/session";
import { PROOFS } from "../words.gen";
import { Cards } from "./cards";
import { DrainProgress } from "./drain-progress";
import { MemoryHistory } from "./memory-history";
import styles from "./node.module.css";

export function NowTab({ node }: { node: NodeRow }) {
  const drain = useNodeExtra(node.id, "drain");
  const mayReadHistory = useMay("metrics.read");
  return (
    <>
      {drain !== undefined && node.status === "draining" && <DrainProgress drain={drain} />}
      <div className={styles.columns}>
        <Section title="Memory">
          <Memory node={node} />
        </Section>
        <Section title="Machine">
          <Machine node={node} />
        </Section>
      </div>
      <Cards node={node} />
      <Replicas node={node} />
      <Work id={node.id} />
      {mayReadHistory && <MemoryHistory node={node} />}
    </>
  );
}

function Memory({ node }: { node: NodeRow }) {
  const detail = useNodeExtra(node.id, "detail");
  const budget = detail?.vram_budget_bytes ?? null;
  return (
    <div className={styles.bars}>
      <Labelled name="VRAM">
        {node.vram.total === 0 ? (
          <span className={styles.quiet}>no GPU</span>
        ) : (
          <MemoryBar name="VRAM" share={node.vram} budget={budget} />
        )}
      </Labelled>
      <Labelled name="RAM">
        <MemoryBar name="RAM" share={node.ram} />
      </Labelled>
      <Labelled name="Disk">
        <MemoryBar name="Disk" share={diskShare(node)} />
      </Labelled>
    </div>
  );
}

function diskShare(node: NodeRow): NodeRow["ram"] {
  const { total, free } = node.disk;
  return { total, used: total === null || free === null ? null : total - free, reserved: 0 };
}

function Labelled({ name, children }: { name: string; children: React.ReactNode }) {
  return (
    <div className={styles.labelled}>
      <span className={styles.quiet}>{name}</span>
      {children}
    </div>
  );
}

function Machine({ node }: { node: NodeRow }) {
  const detail = useNodeExtra(node.id, "detail");
  return (
    <Facts isWide>
      <Fact name="Address">{node.address || "none"}</Fact>
      <Fact name="Hardware">{gpuText(node)}</Fact>
      <Fact name="In flight">{count(node.in_flight)}</Fact>
      <Fact name="Slots">{plural(node.slots, "replica")} of one model</Fact>
      <Fact name="Heartbeat">every {count(node.heartbeat_seconds)} s</Fact>
      {detail !== undefined && (
        <>
          <Fact name="Approved">
            {detail.approved ? (
              <>
                by {detail.approved_by || "its token"}, <Age at={detail.approved_at} />
              </>
            ) : (
              "no"
            )}
          </Fact>
          <Fact name="Proof of installs">
            {node.kind === "localai" ? "presence only: it reports no digests" : "by digest"}
          </Fact>
          {detail.corral?.platform && <Fact name="Platform">{detail.corral.platform}</Fact>}
        </>
      )}
    </Facts>
  );
}

const COLUMNS: readonly Column<ReplicaRow>[] = [
  {
    key: "model",
    title: "Model",
    width: "minmax(110px, 1.6fr)",
    cell: (replica) => <PageLink href={addressOf.model(replica.model ?? "")}>{replica.model}</PageLink>,
  },
  {
    key: "state",
    title: "State",
    width: "108px",
    cell: (replica) => <StatusPill subject="replica" state={replica.state} />,
  },
  { key: "busy", title: "In flight", width: "70px", isNumber: true, cell: (replica) => count(replica.in_flight) },
  {
    key: "backend",
    title: "Backend",
    width: "minmax(80px, 1fr)",
    from: "tablet",
    cell: (replica) => replica.backend || "–",
  },
  {
    key: "memory",
    title: "Counts with",
    width: "196px",
    from: "tablet",
    isNumber: true,
    cell: (replica) => memoryOf(replica),
  },
  {
    key: "speed",
    title: "Tokens/s",
    width: "76px",
    from: "tablet",
    isNumber: true,
    cell: (replica) => (replica.tokens_per_second ? replica.tokens_per_second.toFixed(1) : "–"),
  },
  { key: "why", title: "Wanted by", width: "90px", from: "wide", cell: (replica) => replica.why || "–" },
  {
    key: "since",
    title: "Since",
    width: "90px",
    from: "wide",
    isNumber: true,
    cell: (replica) => <Age at={replica.changed_at} />,
  },
];

function memoryOf(replica: ReplicaRow): string {
  const parts = [replica.vram ? `${bytes(replica.vram)} VRAM` : "", replica.ram ? `${bytes(replica.ram)} RAM` : ""];
  return parts.filter(Boolean).join(", ") || "–";
}

function Replicas({ node }: { node: NodeRow }) {
  const { items } = useTopic("replicas");
  const here = [...items.values()].filter((replica) => replica.node_id === node.id);
  return (
    <Section title={`Replicas, ${here.length}`} isBare>
      {here.length === 0 ? (
        <Empty>No model runs here. The next one that fits may.</Empty>
      ) : (
        <Table label="Replicas on this node" rows={here} columns={COLUMNS} rowKey={(replica) => replica.id} />
      )}
    </Section>
  );
}

const WORK: readonly Column<NodeWork>[] = [
  {
    key: "what",
    title: "What",
    width: "minmax(96px, 1fr)",
    cell: (work) => (
      <PageLink href={addressOf.operation(work.operation_id)}>
        {work.verb} {work.backend}
      </PageLink>
    ),
  },
  {
    key: "state",
    title: "State",
    width: "116px",
    cell: (work) => <TargetPill status={work.status} verb={work.verb} />,
  },
  {
    key: "progress",
    title: "Progress",
    width: "minmax(90px, 1fr)",
    from: "tablet",
    cell: (work) =>
      work.status === "downloading" ? (
        <ProgressBar name={`${work.verb} ${work.backend}`} percentage={work.percentage} />
      ) : (
        <span className={styles.quiet}>–</span>
      ),
  },
  {
    key: "why",
    title: "Why",
    width: "minmax(72px, 2fr)",
    cell: (work) => (
      <span title={work.message}>
        {PROOFS[work.message] ?? (work.message || (work.status === "downloading" ? percent(work.percentage) : "–"))}
      </span>
    ),
  },
];

function Work({ id }: { id: string }) {
  const work = useNodeExtra(id, "work") ?? [];
  if (work.length === 0) return null;
  return (
    <Section title={`Asked of it, ${work.length}`} isBare>
      <Table
        label="What is asked of this node"
        rows={work}
        columns={WORK}
        rowKey={(one) => `${one.operation_id} ${one.backend}`}
      />
    </Section>
  );
}
