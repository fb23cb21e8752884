/** The fields of the dialog that scales a model, and what they mean. Pure. */

import type { RuleWish } from "./act-plans";
import { word } from "./pull-words";

export type Mode = "asked" | "exactly" | "between" | "spread";

/** As typed. */
export interface Counts {
  readonly mode: Mode;
  readonly exactly: string;
  readonly least: string;
  readonly most: string;
}

type Bounds = Pick<RuleWish, "min_replicas" | "max_replicas" | "spread_all">;

export function countsOf({ min_replicas: least, max_replicas: most, spread_all: isSpread }: Bounds): Counts {
  return { mode: modeOf(least, most, isSpread), exactly: String(least || 1), least: String(least), most: String(most) };
}

function modeOf(least: number, most: number, isSpread: boolean): Mode {
  if (isSpread) return "spread";
  if (least === 0 && most === 0) return "asked";
  return least === most ? "exactly" : "between";
}

/** What is wrong with what was typed; empty when nothing is. */
export function countsProblem(counts: Counts): string {
  if (counts.mode === "exactly") return isCount(counts.exactly, 1) ? "" : "Type a whole number from 1 on.";
  if (counts.mode !== "between") return "";
  if (!isCount(counts.least, 0) || !isCount(counts.most, 0)) return "Type whole numbers.";
  const [least, most] = [Number(counts.least), Number(counts.most)];
  return most > 0 && most < least ? "At most must not be below at least." : "";
}

const MOST_REPLICAS = 10_000;

function isCount(text: string, least: number): boolean {
  return /^\d+$/.test(text.trim()) && Number(text) >= least && Number(text) <= MOST_REPLICAS;
}

export function readCounts(counts: Counts): Bounds {
  switch (counts.mode) {
    case "asked":
      return { min_replicas: 0, max_replicas: 0, spread_all: false };
    case "spread":
      return { min_replicas: 0, max_replicas: 0, spread_all: true };
    case "exactly":
      return { min_replicas: Number(counts.exactly), max_replicas: Number(counts.exactly), spread_all: false };
    case "between":
      return { min_replicas: Number(counts.least), max_replicas: Number(counts.most), spread_all: false };
  }
}

/** The command that does the same. */
export function scaleCommand(model: string, counts: Counts): string {
  const options: Readonly<Record<Mode, string>> = {
    asked: "--auto",
    spread: "--spread",
    exactly: counts.exactly,
    between: `--min ${counts.least} --max ${counts.most}`,
  };
  return `corral models scale ${word(model)} ${options[counts.mode]}`;
}
