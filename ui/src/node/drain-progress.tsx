/** How far a drain is: replicas left, requests left, and what stays because nothing else can take it. */

import type { Schema } from "../api/client";
import { count, duration, plural } from "../parts/format";
import { Section } from "../parts/page";
import { Notice } from "../parts/states";
import { StatusPill } from "../parts/status-pill";
import { type Column, Table } from "../parts/table";
import { Since } from "../parts/time";
import styles from "./node.module.css";

type Replica = NonNullable<Schema<"DrainView">["replicas"]>[number];

const STEPS: Readonly<Record<string, string>> = {
  moves: "another is loaded elsewhere first",
  ends: "its last requests finish",
  loads: "it is still being loaded",
  stays: "nothing else can take it",
};

const COLUMNS: readonly Column<Replica>[] = [
  { key: "model", title: "Model", width: "minmax(100px, 1fr)", cell: (replica) => replica.model },
  {
    key: "state",
    title: "State",
    width: "108px",
    cell: (replica) => <StatusPill subject="replica" state={replica.state} />,
  },
  { key: "busy", title: "In flight", width: "70px", isNumber: true, cell: (replica) => count(replica.in_flight) },
  {
    key: "step",
    title: "What becomes of it",
    width: "minmax(140px, 2fr)",
    cell: (replica) => (
      <span title={reasonsOf(replica)}>
        {[STEPS[replica.step] ?? replica.step, replica.why].filter(Boolean).join(": ")}
      </span>
    ),
  },
];

export function DrainProgress({ drain }: { drain: Schema<"DrainView"> }) {
  const replicas = drain.replicas ?? [];
  return (
    <Section title={drain.state === "drained" ? "Drained" : "Draining"} isBare={replicas.length > 0}>
      <p className={replicas.length > 0 ? styles.lead : undefined}>{sentenceOf(drain)}</p>
      {drain.since && (
        <p className={replicas.length > 0 ? styles.lead : undefined}>
          Begun by {drain.by || "nobody known"}, <Since at={drain.since} /> ago. Requests may go on for{" "}
          {duration(drain.requests_within_seconds)} once a replica gets no more.
        </p>
      )}
      {drain.stays > 0 && (
        <div className={styles.lead}>
          <Notice tone="yellow">
            {plural(drain.stays, "replica stays", "replicas stay")} until there is room elsewhere, or until somebody
            forces the drain.
          </Notice>
        </div>
      )}
      {replicas.length > 0 && (
        <Table label="Replicas that are left" rows={replicas} columns={COLUMNS} rowKey={(replica) => replica.id} />
      )}
    </Section>
  );
}

function sentenceOf(drain: Schema<"DrainView">): string {
  if (drain.state === "drained") return "Nothing is left here: the machine can be taken away.";
  const requests =
    drain.requests_left === null ? "an unknown number of requests" : plural(drain.requests_left, "request");
  return `${plural(drain.replicas_left, "replica")} and ${requests} left.`;
}

function reasonsOf(replica: Replica): string {
  return Object.entries(replica.nodes ?? {})
    .map(([node, why]) => `${node}: ${why}`)
    .join("\n");
}
