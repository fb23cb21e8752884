/** Where each node is on the canvas, and how it is drawn. */

import type { NodeRow } from "../live/topics";
import { stateWord } from "../words.gen";
import type { NodeGroup } from "./selection";

const CELL = 13;
const GAP = 2;
const STEP = CELL + GAP;
const MARGIN = 16;
const TITLE = 22;

export interface Placed {
  readonly cells: readonly { readonly node: NodeRow; readonly x: number; readonly y: number }[];
  readonly titles: readonly { readonly text: string; readonly y: number }[];
  readonly height: number;
  readonly columns: number;
}

export function layOut(groups: readonly NodeGroup[], width: number): Placed {
  const columns = Math.max(1, Math.floor((width - 2 * MARGIN + GAP) / STEP));
  const cells: Placed["cells"][number][] = [];
  const titles: Placed["titles"][number][] = [];
  let y = MARGIN;
  for (const group of groups) {
    if (group.name !== "") {
      titles.push({ text: `${group.name} · ${group.nodes.length}`, y: y + TITLE / 2 });
      y += TITLE;
    }
    for (const [index, node] of group.nodes.entries()) {
      cells.push({ node, x: MARGIN + (index % columns) * STEP, y: y + Math.floor(index / columns) * STEP });
    }
    y += Math.ceil(group.nodes.length / columns) * STEP + MARGIN;
  }
  return { cells, titles, height: y, columns };
}

export function nodeAt(placed: Placed, x: number, y: number): NodeRow | null {
  const cell = placed.cells.find((one) => x >= one.x && x < one.x + CELL && y >= one.y && y < one.y + CELL);
  return cell?.node ?? null;
}

/** One path for each tone: ten thousand squares are ten fills. */
export function draw(canvas: HTMLCanvasElement, placed: Placed, width: number): void {
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = placed.height * scale;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${placed.height}px`;
  const context = canvas.getContext("2d");
  if (context === null) return;
  context.scale(scale, scale);
  const style = getComputedStyle(canvas);
  const tones = Map.groupBy(placed.cells, ({ node }) => stateWord("node", node.status).tone);
  for (const [tone, cells] of tones) {
    context.fillStyle = style.getPropertyValue(`--tone-${tone}`);
    context.beginPath();
    for (const { x, y } of cells) context.rect(x, y, CELL, CELL);
    context.fill();
  }
  context.fillStyle = style.getPropertyValue("--text");
  context.font = `500 12px ${style.getPropertyValue("--font")}`;
  context.textBaseline = "middle";
  for (const { text, y } of placed.titles) context.fillText(text, MARGIN, y);
}
