/** Nodes as a grid, as a table, or, when there are very many, as a drawing with the table as its twin. */

import { useRef } from "react";

import type { NodeRow } from "../live/topics";
import { useFilters } from "../parts/filters";
import { useThrottled } from "../parts/throttled";
import { NodeCanvas } from "./node-canvas";
import { NodeGrid } from "./node-grid";
import { NodeTable } from "./node-table";
import { groupNodes, haveSamePlaces, type NodeGroup } from "./selection";

/** Real buttons up to here: accessible for nothing, and fast enough. */
const MOST_BUTTONS = 2000;
/** A table of so many is sorted again once in this time. */
const SORT_MILLISECONDS = 1000;

export function NodesView({ nodes }: { nodes: readonly NodeRow[] }) {
  const isTable = useFilters().get("view") === "table";
  const isMany = nodes.length > MOST_BUTTONS;
  return (
    <>
      {!isTable && <Places nodes={nodes} isMany={isMany} />}
      {isMany && <SlowTable nodes={nodes} />}
      {isTable && !isMany && <NodeTable nodes={nodes} />}
    </>
  );
}

/** Groups are made again only when a node changes its place: most changes are of numbers, which cells draw alone. */
function Places({ nodes, isMany }: { nodes: readonly NodeRow[]; isMany: boolean }) {
  const key = useFilters().get("group");
  const places = useRef<{ nodes: readonly NodeRow[]; key: string; groups: readonly NodeGroup[] } | null>(null);
  const before = places.current;
  if (before === null || before.key !== key || !haveSamePlaces(before.nodes, nodes, key)) {
    places.current = { nodes, key, groups: groupNodes(nodes, key) };
  }
  const groups = places.current?.groups ?? [];
  return isMany ? <NodeCanvas groups={groups} nodes={nodes} /> : <NodeGrid groups={groups} count={nodes.length} />;
}

function SlowTable({ nodes }: { nodes: readonly NodeRow[] }) {
  return <NodeTable nodes={useThrottled(nodes, SORT_MILLISECONDS)} />;
}
