/** Nodes × backends as a table: one row per node, or per group of nodes that have the same, when there are many. Pure. */

import type { Schema } from "../api/client";

type FleetBackends = Schema<"FleetBackends">;
type OnNode = Schema<"NodeBackendView">;

/** Above so many nodes, nodes that have the same share a row. */
export const GROUPED_ABOVE = 100;

export interface MatrixNode {
  readonly id: string;
  readonly name: string;
  readonly status: string;
}

export interface Drifted {
  readonly node_id: string;
  readonly backend: string;
}

export interface Cell {
  readonly version: string;
  readonly digest: string;
  readonly isSystem: boolean;
  /** The oldest word of the nodes of this row about it; null where it is not there. */
  readonly seenAt: string | null;
  /** Most nodes have another build of it. */
  readonly differs: boolean;
  /** Nodes of this row on which it is not as asked. */
  readonly drifted: number;
  /** Whether it is there at all. */
  readonly isThere: boolean;
}

export interface MatrixRow {
  readonly key: string;
  readonly nodes: readonly MatrixNode[];
  readonly cells: ReadonlyMap<string, Cell>;
}

export interface Matrix {
  readonly backends: readonly string[];
  readonly rows: readonly MatrixRow[];
  readonly isGrouped: boolean;
}

export function matrixOf(
  listing: FleetBackends,
  nodes: readonly MatrixNode[],
  drift: readonly Drifted[],
  groupedAbove = GROUPED_ABOVE,
): Matrix {
  const backends = [...new Set([...listing.items.map((item) => item.name), ...drift.map((item) => item.backend)])];
  const chosen = chosenOf(listing, drift);
  const rank = (name: string) => (chosen.has(name) ? 0 : 1);
  backends.sort((one, other) => rank(one) - rank(other) || one.localeCompare(other));
  const index = indexOf(listing, drift);
  const rows = nodes.map((node) => ({ key: node.id, nodes: [node], cells: index.get(node.id) ?? NO_CELLS }));
  const isGrouped = nodes.length > groupedAbove;
  return { backends, rows: isGrouped ? grouped(rows) : rows, isGrouped };
}

/** What somebody wanted somewhere; the others came with their machines, and are looked at less. */
function chosenOf(listing: FleetBackends, drift: readonly Drifted[]): ReadonlySet<string> {
  const installed = listing.items.filter((item) => item.nodes.some((here) => !here.is_system));
  return new Set([...installed.map((item) => item.name), ...drift.map((item) => item.backend)]);
}

const NO_CELLS: ReadonlyMap<string, Cell> = new Map();

/** The cells of every node, in one pass over all that is told. */
function indexOf(listing: FleetBackends, drift: readonly Drifted[]): ReadonlyMap<string, ReadonlyMap<string, Cell>> {
  const index = new Map<string, Map<string, Cell>>();
  const cellsOf = (node: string) => {
    const cells = index.get(node) ?? new Map<string, Cell>();
    index.set(node, cells);
    return cells;
  };
  for (const backend of listing.items) {
    const usual = usualBuild(backend.nodes);
    for (const own of backend.nodes) cellsOf(own.node_id).set(backend.name, cellOf(own, usual));
  }
  for (const { node_id, backend } of drift) {
    const cells = cellsOf(node_id);
    cells.set(backend, { ...(cells.get(backend) ?? ABSENT), drifted: 1 });
  }
  return index;
}

const ABSENT: Cell = {
  version: "",
  digest: "",
  isSystem: false,
  seenAt: null,
  differs: false,
  drifted: 0,
  isThere: false,
};

function cellOf(own: OnNode, usual: Build): Cell {
  return {
    version: own.version,
    digest: own.digest,
    isSystem: own.is_system,
    seenAt: own.seen_at,
    differs: !isAlike(own, usual),
    drifted: 0,
    isThere: true,
  };
}

interface Build {
  readonly version: string;
  readonly digest: string;
}

/** The build that most nodes have; of several as common ones, the one that was installed last. */
function usualBuild(nodes: readonly OnNode[]): Build {
  const counts = new Map<string, { build: Build; count: number; latest: string }>();
  for (const { version, digest, installed_at } of nodes) {
    const key = `${version}\n${digest}`;
    const before = counts.get(key) ?? { build: { version, digest }, count: 0, latest: "" };
    const latest = installed_at > before.latest ? installed_at : before.latest;
    counts.set(key, { build: before.build, count: before.count + 1, latest });
  }
  const [first] = [...counts.values()].toSorted(
    (one, other) => other.count - one.count || other.latest.localeCompare(one.latest),
  );
  return first?.build ?? { version: "", digest: "" };
}

/** What a node does not tell is no difference. */
function isAlike(one: Build, other: Build): boolean {
  const same = (mine: string, theirs: string) => mine === "" || theirs === "" || mine === theirs;
  return same(one.version, other.version) && same(one.digest, other.digest);
}

/** Rows of nodes that have the same builds and miss the same, the largest group first. */
function grouped(rows: readonly MatrixRow[]): readonly MatrixRow[] {
  const groups = new Map<string, MatrixRow[]>();
  for (const row of rows) {
    const key = signatureOf(row);
    const group = groups.get(key);
    if (group === undefined) groups.set(key, [row]);
    else group.push(row);
  }
  return [...groups]
    .map(([key, members]) => merged(key, members))
    .toSorted((one, other) => other.nodes.length - one.nodes.length || one.key.localeCompare(other.key));
}

function signatureOf(row: MatrixRow): string {
  return [...row.cells]
    .map(([backend, cell]) =>
      [backend, cell.version, cell.digest, cell.isSystem, cell.drifted, cell.isThere].join("\t"),
    )
    .toSorted()
    .join("\n");
}

function merged(key: string, members: readonly MatrixRow[]): MatrixRow {
  const cells = new Map<string, Cell>();
  for (const [backend, cell] of members[0]?.cells ?? []) {
    const own = members.map((member) => member.cells.get(backend) ?? cell);
    const drifted = own.reduce((total, each) => total + each.drifted, 0);
    const seen = own.map((each) => each.seenAt).filter((at) => at !== null);
    cells.set(backend, { ...cell, drifted, seenAt: seen.toSorted()[0] ?? null });
  }
  return { key, nodes: members.flatMap((member) => member.nodes), cells };
}

/** Rows whose nodes a search means: by a part of their name, or a status. */
export function findRows(rows: readonly MatrixRow[], text: string): readonly MatrixRow[] {
  const word = text.trim().toLowerCase();
  if (word === "") return rows;
  const fits = (node: MatrixNode) => node.name.toLowerCase().includes(word) || node.status === word;
  return rows.filter((row) => row.nodes.some(fits));
}

/** "gpu-1, gpu-2 and 36 more". */
export function namesText(nodes: readonly { readonly name: string }[], most = 2): string {
  const names = nodes.slice(0, most).map((node) => node.name);
  const rest = nodes.length - names.length;
  return rest > 0 ? `${names.join(", ")} and ${rest} more` : names.join(", ");
}
