/** How far a load is, in one form, whichever way it was learned: from the live stream or from a refusal. Pure. */

import type { LoadRow } from "../live/topics";
import { bytes, duration, eta, speed } from "../parts/format";
import { stateWord } from "../words.gen";

export interface NewsStep {
  readonly step: string;
  readonly seconds: number;
  /** `done`, `running`, `failed` or `waiting`. */
  readonly state: string;
}

export interface LoadNews {
  readonly isFailed: boolean;
  /** What is being done, in words. */
  readonly phase: string;
  /** Empty while no node is chosen, or where one may not know. */
  readonly node: string;
  readonly nodeId: string;
  readonly steps: readonly NewsStep[];
  readonly bytes: number | null;
  readonly totalBytes: number | null;
  readonly bytesPerSecond: number | null;
  readonly secondsLeft: number | null;
  readonly message: string;
  readonly isPermanent: boolean;
  readonly retryInSeconds: number | null;
  readonly engineLines: readonly string[];
}

/** The order in which a load goes. */
export const STEPS: readonly string[] = ["place", "install", "stage", "start", "load"];

/** The object `loading` of a 503, and the answer of the route that tells how far a load is. */
export interface LoadingAnswer {
  readonly model?: string;
  readonly state?: string;
  readonly node?: string;
  readonly bytes_sent?: number | null;
  readonly total_bytes?: number | null;
  readonly bytes_per_second?: number | null;
  readonly eta_seconds?: number | null;
  readonly message?: string;
  readonly step?: string;
  readonly step_seconds?: Readonly<Record<string, number>>;
  readonly is_permanent?: boolean;
  readonly retry_in_seconds?: number | null;
  readonly engine_lines?: readonly string[];
}

export function newsOfRow(row: LoadRow): LoadNews {
  const running = row.steps.find((step) => step.state === "running");
  return {
    isFailed: row.phase === "failed",
    phase: phaseWord(row.phase, running?.step ?? ""),
    node: row.node,
    nodeId: row.node_id,
    steps: row.steps,
    bytes: row.bytes ?? null,
    totalBytes: row.total_bytes || null,
    bytesPerSecond: row.bytes_per_second ?? null,
    secondsLeft: row.seconds_left ?? null,
    message: row.message,
    isPermanent: row.is_permanent,
    retryInSeconds: row.retry_in_seconds ?? null,
    engineLines: row.engine_lines ?? [],
  };
}

export function newsOfAnswer(answer: LoadingAnswer): LoadNews {
  const isFailed = answer.state === "failed";
  return {
    isFailed,
    phase: phaseWord(answer.state ?? "", answer.step ?? ""),
    node: answer.node ?? "",
    nodeId: "",
    steps: stepsOf(answer, isFailed),
    bytes: answer.bytes_sent ?? null,
    totalBytes: answer.total_bytes || null,
    bytesPerSecond: answer.bytes_per_second ?? null,
    secondsLeft: answer.eta_seconds ?? null,
    message: answer.message ?? "",
    isPermanent: answer.is_permanent ?? false,
    retryInSeconds: answer.retry_in_seconds ?? null,
    engineLines: answer.engine_lines ?? [],
  };
}

function stepsOf(answer: LoadingAnswer, isFailed: boolean): NewsStep[] {
  const seconds = answer.step_seconds ?? {};
  return STEPS.filter((step) => step in seconds).map((step) => {
    const isCurrent = step === answer.step;
    return { step, seconds: seconds[step] ?? 0, state: isCurrent ? (isFailed ? "failed" : "running") : "done" };
  });
}

/** The step says more than the phase, where one is under way. */
function phaseWord(phase: string, step: string): string {
  if (phase === "failed" || phase === "pending") return stateWord("load", phase).label;
  if (step !== "") return stateWord("load_step", step).label;
  return phase === "" ? stateWord("load", "loading").label : capital(phase);
}

function capital(word: string): string {
  return word.charAt(0).toUpperCase() + word.slice(1).replaceAll("_", " ");
}

/** "41.0 MiB of 93.8 MiB, 12.0 MiB/s, 4 s left", as far as that is known. */
export function amountText(news: LoadNews): string {
  if (news.totalBytes === null) return "";
  const amount = news.bytes === null ? bytes(news.totalBytes) : `${bytes(news.bytes)} of ${bytes(news.totalBytes)}`;
  return [amount, speed(news.bytesPerSecond), eta(news.secondsLeft)].filter((part) => part !== "").join(", ");
}

/** Percent of the bytes; null where nobody can tell. */
export function shareOf(news: LoadNews): number | null {
  if (news.totalBytes === null || news.bytes === null) return null;
  return Math.min(100, (100 * news.bytes) / news.totalBytes);
}

/** "Bringing files on gpu-1: 41.0 MiB of 93.8 MiB, 4 s left". */
export function newsSentence(news: LoadNews): string {
  const where = news.node === "" ? "" : ` on ${news.node}`;
  const amount = amountText(news);
  const left = amount === "" ? eta(news.secondsLeft) : amount;
  return `${news.phase}${where}${left === "" ? "" : `: ${left}`}`;
}

/** What comes after a failure. */
export function againSentence(news: LoadNews): string {
  if (news.isPermanent) return "It is not tried again until the model, its files or its engine change.";
  if (news.retryInSeconds === null) return "";
  return news.retryInSeconds > 0
    ? `It is tried again for whoever asks in ${duration(news.retryInSeconds)}.`
    : "It is tried again for whoever asks.";
}

/** Why there is no replica, and what makes one: a request does not where the model is disabled or its load cannot succeed. */
export function nothingRuns(
  isDisabled: boolean,
  loads: readonly { readonly phase: string; readonly is_permanent: boolean }[],
): string {
  if (isDisabled) return "Nothing runs for it: it is disabled.";
  if (loads.some((load) => load.phase !== "failed")) return "Nothing runs for it yet.";
  if (loads.some((load) => load.is_permanent)) return "Nothing runs for it: it cannot be loaded.";
  return "Nothing runs for it. The first request loads it.";
}
