/** Backends of one node: what it reported, when, and whether that is what was asked for. */

import { useQuery } from "@tanstack/react-query";

import { answer, api, ask, type Schema } from "../api/client";
import type { NodeRow } from "../live/topics";
import { shortDigest } from "../parts/format";
import { Section } from "../parts/page";
import { addressOf, PageLink } from "../parts/page-link";
import { Empty, Failure, Loading } from "../parts/states";
import { byText, type Column, Table } from "../parts/table";
import { Age } from "../parts/time";
import styles from "./node.module.css";

interface Drift {
  readonly node_id: string;
  readonly backend: string;
  readonly wanted: string;
  readonly has: string;
  readonly why: string;
}

interface Row {
  readonly name: string;
  readonly here: Schema<"NodeBackendView">;
  readonly drift: Drift | undefined;
}

export function BackendsTab({ node }: { node: NodeRow }) {
  const backends = useQuery({ queryKey: ["backends"], queryFn: () => answer(api.GET("/api/v1/backends")) });
  const drift = useQuery({ queryKey: ["drift"], queryFn: () => ask<{ items: Drift[] }>("GET", "/api/v1/drift") });
  if (backends.isPending) return <Loading label="Loading backends" />;
  if (backends.isError) return <Failure error={backends.error} onRetry={() => void backends.refetch()} />;
  const drifted = (drift.data?.items ?? []).filter((item) => item.node_id === node.id);
  const rows = rowsOf(node, backends.data, drifted);
  const missing = drifted.filter((item) => !rows.some((row) => row.name === item.backend));
  return (
    <>
      <Section title={`Backends, ${rows.length}`} isBare>
        {rows.length === 0 ? (
          <Empty command={`corral backends install NAME --node ${node.name}`}>
            {backends.data.unheard?.includes(node.name)
              ? "It has not reported its backends yet."
              : "No backend is installed here. A model that is loaded here brings its own."}
          </Empty>
        ) : (
          <Table label="Backends of this node" rows={rows} columns={COLUMNS} rowKey={(row) => row.name} />
        )}
      </Section>
      {missing.length > 0 && (
        <Section title="Wanted, and not here">
          <ul className={styles.missing}>
            {missing.map((item) => (
              <li key={item.backend}>
                <strong>{item.backend}</strong> <span className={styles.quiet}>{item.why}</span>
              </li>
            ))}
          </ul>
        </Section>
      )}
    </>
  );
}

function Untold() {
  return (
    <span className={styles.quiet} title="The node does not tell.">
      –
    </span>
  );
}

function rowsOf(node: NodeRow, backends: Schema<"FleetBackends">, drifted: readonly Drift[]): Row[] {
  return backends.items.flatMap((backend) =>
    backend.nodes
      .filter((here) => here.node_id === node.id)
      .map((here) => ({ name: backend.name, here, drift: drifted.find((item) => item.backend === backend.name) })),
  );
}

const COLUMNS: readonly Column<Row>[] = [
  {
    key: "name",
    title: "Backend",
    width: "minmax(110px, 1.2fr)",
    cell: (row) => <PageLink href={addressOf.backend(row.name)}>{row.name}</PageLink>,
    sort: byText((row) => row.name),
  },
  { key: "version", title: "Version", width: "minmax(70px, 0.8fr)", cell: (row) => row.here.version || <Untold /> },
  {
    key: "digest",
    title: "Digest",
    width: "120px",
    from: "tablet",
    cell: (row) => (row.here.digest ? <code title={row.here.digest}>{shortDigest(row.here.digest)}</code> : <Untold />),
  },
  {
    key: "drift",
    title: "As asked",
    width: "minmax(90px, 1.6fr)",
    cell: (row) =>
      row.drift === undefined ? (
        <span className={styles.quiet}>yes</span>
      ) : (
        <span className={styles.drift} title={row.drift.why}>
          ⊘ {row.drift.why || `wanted ${row.drift.wanted}`}
        </span>
      ),
  },
  {
    key: "origin",
    title: "Origin",
    width: "90px",
    from: "wide",
    cell: (row) => (row.here.is_system ? <span className={styles.quiet}>the system</span> : "installed"),
  },
  {
    key: "installed",
    title: "Installed",
    width: "96px",
    from: "wide",
    isNumber: true,
    cell: (row) => (row.here.installed_at ? <Age at={row.here.installed_at} /> : <Untold />),
  },
  {
    key: "seen",
    title: "Reported",
    width: "96px",
    from: "tablet",
    isNumber: true,
    cell: (row) => <Age at={row.here.seen_at} />,
  },
];
