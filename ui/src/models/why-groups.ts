/** Every node's verdict on a model, put together by reason. Pure. */

import type { Schema } from "../api/client";
import { bytes, count } from "../parts/format";

export type Verdict = Schema<"NodeVerdictView">;

export const FITS = "fits";

/** What there is too little of, where the server compared numbers. */
const LACKS: Readonly<Record<string, string>> = {
  no_vram: "not enough VRAM",
  no_ram: "not enough RAM",
  no_disk: "not enough room on the disk",
};

export interface ReasonGroup {
  readonly key: string;
  readonly code: string;
  /** What speaks against these nodes, without their number. */
  readonly reason: string;
  readonly verdicts: readonly Verdict[];
}

export interface GroupedVerdicts {
  /** Nodes that can take one more, the best first. */
  readonly fitting: readonly Verdict[];
  /** The others, the commonest reason first. */
  readonly groups: readonly ReasonGroup[];
}

export function groupVerdicts(verdicts: readonly Verdict[]): GroupedVerdicts {
  const byReason = new Map<string, Verdict[]>();
  for (const verdict of verdicts) {
    if (verdict.code === FITS) continue;
    const key = keyOf(verdict);
    const others = byReason.get(key);
    if (others === undefined) byReason.set(key, [verdict]);
    else others.push(verdict);
  }
  const groups = [...byReason].map(([key, members]) => groupOf(key, members));
  groups.sort((one, other) => other.verdicts.length - one.verdicts.length || one.key.localeCompare(other.key));
  return { fitting: verdicts.filter((verdict) => verdict.code === FITS), groups };
}

/** Nodes with the same need belong together, whatever is free on each; without numbers, those with the same sentence. */
function keyOf(verdict: Verdict): string {
  const needed = verdict.numbers?.["needed"];
  return needed === undefined ? `${verdict.code} ${verdict.why ?? ""}` : `${verdict.code} ${needed}`;
}

function groupOf(key: string, members: readonly Verdict[]): ReasonGroup {
  const [first] = members;
  const sorted = [...members].sort((one, other) => freeOf(other) - freeOf(one) || one.node.localeCompare(other.node));
  return { key, code: first?.code ?? "", reason: reasonOf(sorted), verdicts: sorted };
}

function reasonOf(sorted: readonly Verdict[]): string {
  const [best] = sorted;
  if (best === undefined) return "";
  const needed = best.numbers?.["needed"];
  const words = best.code.replaceAll("_", " ");
  if (needed === undefined) return best.why || words;
  return `${LACKS[best.code] ?? words} (needs ${bytes(needed)}, best free ${bytes(freeOf(best))})`;
}

function freeOf(verdict: Verdict): number {
  return verdict.numbers?.["free"] ?? verdict.free ?? 0;
}

/** "34 × not enough VRAM (needs 9.1 GiB, best free 7.8 GiB)". */
export function groupSentence(group: ReasonGroup): string {
  return `${count(group.verdicts.length)} × ${group.reason}`;
}

/** The points of a node that fits, by what they are for, and the GPUs that it would give. */
export function scoreSentence(verdict: Verdict): string {
  const points = Object.entries(verdict.score ?? {}).map(([name, value]) => `${name} ${signed(value)}`);
  const cards = verdict.cards ?? [];
  return [...points, ...(cards.length > 0 ? [`would get ${cards.join(", ")}`] : [])].join(", ");
}

function signed(value: number): string {
  const rounded = Math.round(value * 10) / 10;
  return rounded < 0 ? `−${-rounded}` : `+${rounded}`;
}

/** What one replica takes, as one sentence. */
export function needsSentence(needs: Schema<"ModelNeedsView">): string {
  const parts = [
    needs.ram ? `${bytes(needs.ram)} of memory` : "",
    needs.vram ? `${bytes(needs.vram)} of video memory where there are GPUs` : "",
    needs.ram_beside_gpu ? `${bytes(needs.ram_beside_gpu)} of memory beside them` : "",
    needs.disk ? `${bytes(needs.disk)} of files` : "",
  ].filter((part) => part !== "");
  if (parts.length === 0) return "Not known; its engine decides, and the next node is tried.";
  return `${parts.join(", ")} (from: ${needs.source})`;
}
