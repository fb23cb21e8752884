/** Thousands of nodes as squares on a canvas. The table below it says the same to keyboards and screen readers. */

import { type MouseEvent, useEffect, useRef, useState } from "react";

import type { NodeRow } from "../live/topics";
import { useFilters } from "../parts/filters";
import { type StateWord, stateWord } from "../words.gen";
import { draw, layOut, nodeAt, type Placed } from "./canvas-layout";
import styles from "./node-canvas.module.css";
import type { NodeGroup } from "./selection";

export function NodeCanvas({ groups }: { groups: readonly NodeGroup[] }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const placed = useRef<Placed>({ cells: [], titles: [], height: 0, columns: 1 });
  const [width, setWidth] = useState(0);
  const [hovered, setHovered] = useState<NodeRow | null>(null);
  const filters = useFilters();

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
    const frame = requestAnimationFrame(() => {
      placed.current = layOut(groups, width);
      draw(element, placed.current, width);
    });
    return () => cancelAnimationFrame(frame);
  }, [groups, width]);

  const under = (event: MouseEvent<HTMLCanvasElement>) =>
    nodeAt(placed.current, event.nativeEvent.offsetX, event.nativeEvent.offsetY);

  return (
    <div className={styles.frame} aria-hidden="true">
      <canvas
        ref={canvas}
        className={styles.canvas}
        onMouseMove={(event) => setHovered(under(event))}
        onMouseLeave={() => setHovered(null)}
        onClick={(event) => filters.set("node", under(event)?.id ?? "")}
      />
      <p className={styles.hint}>
        {hovered === null ? "Point at a square to see which node it is." : sentenceOf(hovered)}
      </p>
    </div>
  );
}

function sentenceOf(node: NodeRow): string {
  const word: StateWord = stateWord("node", node.status);
  return [`${node.name}: ${word.label}`, node.reason].filter(Boolean).join(", ");
}
