/** Thousands of nodes as squares on a canvas. The table below it says the same to keyboards and screen readers. */

import { type MouseEvent, useEffect, useMemo, useRef, useState } from "react";

import { useItem } from "../live/live";
import type { NodeRow } from "../live/topics";
import { useFilters } from "../parts/filters";
import { stateWord } from "../words.gen";
import { draw, layOut, nodeAt } from "./canvas-layout";
import styles from "./node-canvas.module.css";
import type { NodeGroup } from "./selection";

export function NodeCanvas({ groups, nodes }: { groups: readonly NodeGroup[]; nodes: readonly NodeRow[] }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [hovered, setHovered] = useState("");
  const filters = useFilters();
  const placed = useMemo(() => layOut(groups, width), [groups, width]);

  useEffect(() => {
    const element = canvas.current?.parentElement;
    if (!element) return;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    const element = canvas.current;
    if (element === null || width === 0) return;
    const rows = new Map(nodes.map((node) => [node.id, node]));
    const frame = requestAnimationFrame(() => draw(element, placed, width, rows));
    return () => cancelAnimationFrame(frame);
  }, [placed, nodes, width]);

  const under = ({ nativeEvent }: MouseEvent<HTMLCanvasElement>) =>
    nodeAt(placed, nativeEvent.offsetX, nativeEvent.offsetY) ?? "";

  return (
    <div className={styles.frame} aria-hidden="true">
      <canvas
        ref={canvas}
        className={styles.canvas}
        onMouseMove={(event) => setHovered(under(event))}
        onMouseLeave={() => setHovered("")}
        onClick={(event) => filters.set("node", under(event))}
      />
      <Hint id={hovered} />
    </div>
  );
}

function Hint({ id }: { id: string }) {
  const node = useItem("nodes", id);
  return (
    <p className={styles.hint}>
      {node === undefined ? "Point at a square to see which node it is." : sentenceOf(node)}
    </p>
  );
}

function sentenceOf(node: NodeRow): string {
  return [`${node.name}: ${stateWord("node", node.status).label}`, node.reason].filter(Boolean).join(", ");
}
