/** Where each node is on the canvas, and how it is drawn. */

import type { NodeRow } from "../live/topics";
import { stateWord } from "../words.gen";
import type { NodeGroup } from "./selection";

const CELL = 13;
const GAP = 2;
const STEP = CELL + GAP;
const MARGIN = 16;
const TITLE = 22;
/** What is well steps back, so that the rest is seen. */
const CALM = 0.4;

export interface PlacedNode {
  readonly id: string;
  readonly x: number;
  readonly y: number;
}

export interface Placed {
  readonly cells: readonly PlacedNode[];
  readonly titles: readonly { readonly text: string; readonly y: number }[];
  readonly height: number;
}

export function layOut(groups: readonly NodeGroup[], width: number): Placed {
  const columns = Math.max(1, Math.floor((width - 2 * MARGIN + GAP) / STEP));
  const cells: PlacedNode[] = [];
  const titles: Placed["titles"][number][] = [];
  let y = MARGIN;
  for (const group of groups) {
    if (group.name !== "") {
      titles.push({ text: `${group.name} · ${group.nodes.length}`, y: y + TITLE / 2 });
      y += TITLE;
    }
    for (const [index, { id }] of group.nodes.entries()) {
      cells.push({ id, x: MARGIN + (index % columns) * STEP, y: y + Math.floor(index / columns) * STEP });
    }
    y += Math.ceil(group.nodes.length / columns) * STEP + MARGIN;
  }
  return { cells, titles, height: y };
}

/** The id of the node under a point; null between them. */
export function nodeAt({ cells }: Placed, x: number, y: number): string | null {
  return cells.find((cell) => x >= cell.x && x < cell.x + CELL && y >= cell.y && y < cell.y + CELL)?.id ?? null;
}

/** One path for each tone: ten thousand squares are a handful of fills. */
export function draw(
  canvas: HTMLCanvasElement,
  placed: Placed,
  width: number,
  nodes: ReadonlyMap<string, NodeRow>,
): void {
  const context = sized(canvas, width, placed.height);
  if (context === null) return;
  const style = getComputedStyle(canvas);
  context.clearRect(0, 0, width, placed.height);
  const tones = Map.groupBy(placed.cells, ({ id }) => stateWord("node", nodes.get(id)?.status ?? "offline").tone);
  for (const [tone, cells] of tones) {
    context.fillStyle = style.getPropertyValue(`--tone-${tone}`);
    context.globalAlpha = tone === "green" ? CALM : 1;
    context.beginPath();
    for (const { x, y } of cells) context.rect(x, y, CELL, CELL);
    context.fill();
  }
  context.globalAlpha = 1;
  context.fillStyle = style.getPropertyValue("--text");
  context.font = `500 12px ${style.getPropertyValue("--font")}`;
  context.textBaseline = "middle";
  for (const { text, y } of placed.titles) context.fillText(text, MARGIN, y);
}

/** The canvas in the right size for this screen. Setting a size clears it and is expensive: only where it differs. */
function sized(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D | null {
  const scale = window.devicePixelRatio || 1;
  const context = canvas.getContext("2d");
  const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    context?.scale(scale, scale);
  }
  return context;
}
