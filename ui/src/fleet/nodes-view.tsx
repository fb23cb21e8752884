/** Nodes as a grid, as a table, or, when there are very many, as a drawing with the table as its twin. */

import type { NodeRow } from "../live/topics";
import { useFilters } from "../parts/filters";
import { NodeCanvas } from "./node-canvas";
import { NodeGrid } from "./node-grid";
import { NodeTable } from "./node-table";
import { groupNodes } from "./selection";

/** Real buttons up to here: accessible for nothing, and fast enough. */
const MOST_BUTTONS = 2000;

export function NodesView({ nodes }: { nodes: readonly NodeRow[] }) {
  const filters = useFilters();
  if (filters.get("view") === "table") return <NodeTable nodes={nodes} />;
  const groups = groupNodes(nodes, filters.get("group"));
  if (nodes.length <= MOST_BUTTONS) return <NodeGrid groups={groups} count={nodes.length} />;
  return (
    <>
      <NodeCanvas groups={groups} />
      <NodeTable nodes={nodes} />
    </>
  );
}
