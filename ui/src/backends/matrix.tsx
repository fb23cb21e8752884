/** Nodes × backends: what each node has, in which version, and where that is not as asked. */

import { useMemo, useState } from "react";

import { useTopic } from "../live/live";
import type { NodeRow } from "../live/topics";
import { Button } from "../parts/button";
import { SearchField } from "../parts/fields";
import { useFilters } from "../parts/filters";
import { plural } from "../parts/format";
import { Section } from "../parts/page";
import { PageLink } from "../parts/page-link";
import { Segments } from "../parts/segments";
import { Empty, Failure, Loading, Notice } from "../parts/states";
import { Glyph } from "../parts/status-pill";
import { byNumber, byText, type Column, Table } from "../parts/table";
import { useMay } from "../shell/session";
import { stateWord } from "../words.gen";
import { type Choice, choiceOf, type Verb } from "./acts";
import styles from "./backends.module.css";
import { MatrixCell } from "./matrix-cell";
import {
  findRows,
  GROUPED_ABOVE,
  type Matrix as MatrixData,
  type MatrixNode,
  type MatrixRow,
  matrixOf,
  namesText,
} from "./matrix-rows";
import { useDrift, useInstalled } from "./queries";

export function Matrix({ onAct }: { onAct: (choice: Choice) => void }) {
  const installed = useInstalled();
  const drift = useDrift();
  const nodes = useNodes();
  const filters = useFilters();
  const isGrouped = filters.get("rows") === "" ? nodes.length > GROUPED_ABOVE : filters.get("rows") === "groups";
  const matrix = useMemo(
    () =>
      installed.data &&
      matrixOf(installed.data, nodes, drift.data?.items ?? [], isGrouped ? 0 : Number.POSITIVE_INFINITY),
    [installed.data, drift.data, nodes, isGrouped],
  );
  if (installed.error !== null) return <Failure error={installed.error} onRetry={() => void installed.refetch()} />;
  if (matrix === undefined) return <Loading />;
  const unheard = installed.data?.unheard ?? [];
  return (
    <>
      <MatrixFilters isGrouped={isGrouped} />
      {unheard.length > 0 && (
        <Notice tone="grey">
          {plural(unheard.length, "node")} never said what they have: {unheard.slice(0, 8).join(", ")}
        </Notice>
      )}
      <MatrixTable key={String(isGrouped)} matrix={matrix} onAct={onAct} />
    </>
  );
}

/** Nodes that can have backends, by name. The list stays the same object until one of these facts changes. */
function useNodes(): readonly MatrixNode[] {
  const { items } = useTopic("nodes");
  const key = [...items.values()].map((node) => `${node.id} ${node.status} ${node.name}`).join("\n");
  // biome-ignore lint/correctness/useExhaustiveDependencies: the key says all that matters of the items
  return useMemo(
    () =>
      [...items.values()]
        .filter((node: NodeRow) => node.kind !== "agent")
        .toSorted((one, other) => one.name.localeCompare(other.name, "en", { numeric: true })),
    [key],
  );
}

function MatrixFilters({ isGrouped }: { isGrouped: boolean }) {
  const filters = useFilters();
  return (
    <search className={styles.filters}>
      <SearchField label="Find nodes" value={filters.get("q")} onChange={(text) => filters.set("q", text)} />
      <Segments
        label="Rows"
        segments={[
          { id: "nodes", label: "Every node" },
          { id: "groups", label: "Nodes with the same" },
        ]}
        value={isGrouped ? "groups" : "nodes"}
        onChange={(rows) => filters.set("rows", rows)}
      />
      <Legend />
    </search>
  );
}

function Legend() {
  return (
    <p className={styles.legend}>
      <span>
        <span className={styles.driftMark}>△</span> not as asked
      </span>
      <span>
        <span className={styles.differsMark}>≠</span> most have another build
      </span>
      <span>– not there</span>
    </p>
  );
}

function MatrixTable({ matrix, onAct }: { matrix: MatrixData; onAct: (choice: Choice) => void }) {
  const filters = useFilters();
  const may = useMay("backends.act");
  const [ticked, setTicked] = useState<ReadonlySet<string>>(new Set());
  const only = filters.get("backend");
  const backends = useMemo(
    () =>
      only === "" ? matrix.backends : matrix.backends.filter((name) => name === only || name.endsWith(`-${only}`)),
    [matrix.backends, only],
  );
  const rows = findRows(matrix.rows, filters.get("q"));
  const columns = useMemo(() => columnsOf(backends, matrix.isGrouped), [backends, matrix.isGrouped]);
  const nodes = matrix.rows.filter((row) => ticked.has(row.key)).flatMap((row) => row.nodes.map((node) => node.id));
  if (matrix.backends.length === 0) {
    return (
      <Section>
        <Empty
          command="corral backends install NAME"
          act={<PageLink href="/backends">Choose one in the gallery</PageLink>}
        >
          No backend is installed on any node.
        </Empty>
      </Section>
    );
  }
  return (
    <Section isBare>
      {may && <TickedActs nodes={nodes} onAct={onAct} />}
      {only !== "" && <Only backend={only} onClear={() => filters.set("backend", "")} />}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard */}
      <section className={styles.wide} aria-label="Nodes and backends" tabIndex={0}>
        <div style={{ minWidth: 190 + 116 * backends.length }}>
          <Table
            label="Backends of each node"
            rows={rows}
            columns={columns}
            rowKey={(row) => row.key}
            rowHeight={36}
            {...(may ? { selection: { selected: ticked, onChange: setTicked } } : {})}
          />
        </div>
      </section>
    </Section>
  );
}

function Only({ backend, onClear }: { backend: string; onClear: () => void }) {
  return (
    <p className={styles.only}>
      Only {backend}.{" "}
      <Button isSmall look="quiet" onPress={onClear}>
        Show all backends
      </Button>
    </p>
  );
}

function TickedActs({ nodes, onAct }: { nodes: readonly string[]; onAct: (choice: Choice) => void }) {
  const act = (verb: Verb) => onAct(choiceOf(verb, "", nodes));
  return (
    <div className={styles.ticked} role="toolbar" aria-label="Acts on ticked nodes">
      <span role="status">
        {nodes.length === 0 ? "Tick nodes to act on them" : `${plural(nodes.length, "node")} ticked`}
      </span>
      {(["install", "upgrade", "delete"] as const).map((verb) => (
        <Button key={verb} isSmall isDisabled={nodes.length === 0} onPress={() => act(verb)}>
          {`${verb.charAt(0).toUpperCase()}${verb.slice(1)}…`}
        </Button>
      ))}
    </div>
  );
}

function columnsOf(backends: readonly string[], isGrouped: boolean): readonly Column<MatrixRow>[] {
  const first: Column<MatrixRow> = {
    key: "node",
    title: isGrouped ? "Nodes" : "Node",
    width: "minmax(150px, 1.4fr)",
    sort: isGrouped ? byNumber((row) => -row.nodes.length) : byText((row) => row.nodes[0]?.name ?? ""),
    cell: (row) => <RowName row={row} />,
  };
  const others = backends.map(
    (backend): Column<MatrixRow> => ({
      key: backend,
      title: backend,
      width: "minmax(104px, 1fr)",
      sort: byText((row) => row.cells.get(backend)?.version ?? ""),
      cell: (row) => <MatrixCell cell={row.cells.get(backend)} nodes={row.nodes.length} />,
    }),
  );
  return [first, ...others];
}

function RowName({ row }: { row: MatrixRow }) {
  const [node] = row.nodes;
  if (node === undefined) return null;
  if (row.nodes.length === 1) {
    return (
      <span className={styles.rowName}>
        <Glyph word={stateWord("node", node.status)} />
        <PageLink href={`/nodes/${encodeURIComponent(node.id)}?tab=backends`}>{node.name}</PageLink>
        <span className="visually-hidden">{node.status}</span>
      </span>
    );
  }
  return (
    <span title={row.nodes.map((each) => each.name).join(", ")}>
      <strong>{plural(row.nodes.length, "node")}</strong> <span className={styles.quiet}>{namesText(row.nodes)}</span>
    </span>
  );
}
