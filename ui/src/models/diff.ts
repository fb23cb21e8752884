/** How two texts differ, line by line. Pure. */

export interface DiffLine {
  readonly kind: "same" | "added" | "removed";
  readonly text: string;
  /** Line numbers from 1; null where the line is not in that text. */
  readonly before: number | null;
  readonly after: number | null;
}

/** Lines that belong together, with a few unchanged ones around them. */
export type Hunk = readonly DiffLine[];

const CONTEXT = 3;
/** Larger middles are shown as replaced as a whole: finding the best way would stall the page. */
const MOST_CELLS = 4_000_000;

export function diffHunks(before: string, after: string, context = CONTEXT): Hunk[] {
  return hunksOf(diffLines(before, after), context);
}

export function diffLines(before: string, after: string): DiffLine[] {
  const old = linesOf(before);
  const now = linesOf(after);
  const head = commonStart(old, now);
  const tail = commonEnd(old, now, head);
  const removed = old.slice(head, old.length - tail);
  const added = now.slice(head, now.length - tail);
  const kinds = [...repeat("same", head), ...editsOf(removed, added), ...repeat("same", tail)];
  return numbered(kinds, old, now);
}

type Kind = DiffLine["kind"];

function linesOf(text: string): string[] {
  if (text === "") return [];
  const lines = text.split(/\r\n|\n|\r/);
  if (lines.at(-1) === "") lines.pop();
  return lines;
}

function commonStart(one: readonly string[], other: readonly string[]): number {
  const most = Math.min(one.length, other.length);
  let length = 0;
  while (length < most && one[length] === other[length]) length += 1;
  return length;
}

function commonEnd(one: readonly string[], other: readonly string[], head: number): number {
  const most = Math.min(one.length, other.length) - head;
  let length = 0;
  while (length < most && one[one.length - 1 - length] === other[other.length - 1 - length]) length += 1;
  return length;
}

function repeat(kind: Kind, times: number): Kind[] {
  return Array.from({ length: times }, () => kind);
}

/** The shortest way from one list to the other, by the longest lines that they have in common. */
function editsOf(old: readonly string[], now: readonly string[]): Kind[] {
  if (old.length * now.length > MOST_CELLS) return [...repeat("removed", old.length), ...repeat("added", now.length)];
  const lengths = commonLengths(old, now);
  const width = now.length + 1;
  const kinds: Kind[] = [];
  let row = 0;
  let column = 0;
  while (row < old.length || column < now.length) {
    if (row < old.length && column < now.length && old[row] === now[column]) {
      kinds.push("same");
      row += 1;
      column += 1;
    } else if (
      column === now.length ||
      (row < old.length && at(lengths, row + 1, column, width) >= at(lengths, row, column + 1, width))
    ) {
      kinds.push("removed");
      row += 1;
    } else {
      kinds.push("added");
      column += 1;
    }
  }
  return kinds;
}

/** For each pair of places: how many lines the rests have in common. */
function commonLengths(old: readonly string[], now: readonly string[]): Uint32Array {
  const width = now.length + 1;
  const lengths = new Uint32Array((old.length + 1) * width);
  for (let row = old.length - 1; row >= 0; row -= 1) {
    for (let column = now.length - 1; column >= 0; column -= 1) {
      lengths[row * width + column] =
        old[row] === now[column]
          ? at(lengths, row + 1, column + 1, width) + 1
          : Math.max(at(lengths, row + 1, column, width), at(lengths, row, column + 1, width));
    }
  }
  return lengths;
}

function at(lengths: Uint32Array, row: number, column: number, width: number): number {
  return lengths[row * width + column] ?? 0;
}

function numbered(kinds: readonly Kind[], old: readonly string[], now: readonly string[]): DiffLine[] {
  let before = 0;
  let after = 0;
  return kinds.map((kind) => {
    const text = (kind === "removed" ? old[before] : now[after]) ?? "";
    if (kind !== "added") before += 1;
    if (kind !== "removed") after += 1;
    return { kind, text, before: kind === "added" ? null : before, after: kind === "removed" ? null : after };
  });
}

function hunksOf(lines: readonly DiffLine[], context: number): Hunk[] {
  const hunks: DiffLine[][] = [];
  let end = -1;
  lines.forEach((line, index) => {
    if (line.kind === "same") return;
    const from = Math.max(index - context, end);
    const to = Math.min(index + context + 1, lines.length);
    const last = hunks.at(-1);
    if (last !== undefined && index - context <= end) last.push(...lines.slice(end, to));
    else hunks.push(lines.slice(Math.max(from, 0), to));
    end = Math.max(end, to);
  });
  return hunks;
}
