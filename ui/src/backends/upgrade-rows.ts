/** What is outdated, differs or cannot be told: nodes with the same build share a row. Pure. */

import type { Schema } from "../api/client";
import type { StateWord } from "../words.gen";

type Upgrades = Schema<"UpgradesView">;
type BackendUpgrade = Schema<"BackendUpgradeView">;
type NodeUpgrade = Schema<"NodeUpgradeView">;

export type UpgradeState = "outdated" | "differs" | "unknown" | "current";

export interface UpgradeRow {
  readonly key: string;
  readonly backend: string;
  readonly state: UpgradeState;
  readonly from: Build;
  /** What is to be had; the same as `from` where nothing newer is. */
  readonly to: Build;
  readonly uri: string;
  readonly nodes: readonly NodeUpgrade[];
  readonly reason: string;
  readonly lookedAt: string | null;
}

export interface Build {
  readonly version: string;
  readonly digest: string;
}

/** The words of `corral backends outdated`. */
export const FRESHNESS: Readonly<Record<UpgradeState, StateWord>> = {
  outdated: { label: "Outdated", tone: "yellow", glyph: "◔", tooltip: "Something newer is to be had." },
  differs: { label: "Differs", tone: "yellow", glyph: "◔", tooltip: "Most nodes have another build." },
  unknown: { label: "Unknown", tone: "grey", glyph: "○", tooltip: "Nobody can tell whether it is outdated." },
  current: { label: "Current", tone: "green", glyph: "●", tooltip: "Nothing newer is to be had." },
};

const ORDER: readonly UpgradeState[] = ["outdated", "differs", "unknown", "current"];

export function upgradeRows(upgrades: Upgrades): readonly UpgradeRow[] {
  const rows = upgrades.items.flatMap(rowsOf);
  return rows.toSorted(
    (one, other) => ORDER.indexOf(one.state) - ORDER.indexOf(other.state) || one.backend.localeCompare(other.backend),
  );
}

function rowsOf(backend: BackendUpgrade): readonly UpgradeRow[] {
  const groups = new Map<string, NodeUpgrade[]>();
  for (const node of backend.nodes) {
    const key = [backend.name, stateOf(node), node.version, node.digest, node.reason].join("\n");
    const group = groups.get(key);
    if (group === undefined) groups.set(key, [node]);
    else group.push(node);
  }
  return [...groups].flatMap(([key, nodes]) => (nodes[0] === undefined ? [] : [rowOf(key, backend, nodes[0], nodes)]));
}

function rowOf(key: string, backend: BackendUpgrade, first: NodeUpgrade, nodes: readonly NodeUpgrade[]): UpgradeRow {
  return {
    key,
    backend: backend.name,
    state: stateOf(first),
    from: { version: first.version, digest: first.digest },
    to: { version: backend.available_version, digest: backend.available_digest },
    uri: backend.uri,
    nodes,
    reason: first.reason,
    lookedAt: backend.looked_at ?? null,
  };
}

function stateOf(node: NodeUpgrade): UpgradeState {
  if (node.freshness === "outdated") return "outdated";
  if (node.differs) return "differs";
  return node.freshness === "unknown" ? "unknown" : "current";
}

/** How many backends have something newer. */
export function outdatedCount(upgrades: Upgrades): number {
  return upgrades.items.filter((item) => item.nodes.some((node) => node.freshness === "outdated")).length;
}

export function findUpgrades(
  rows: readonly UpgradeRow[],
  query: { readonly backend: string; readonly isWhole: boolean },
): readonly UpgradeRow[] {
  return rows.filter(
    (row) => (query.backend === "" || row.backend === query.backend) && (query.isWhole || row.state !== "current"),
  );
}
