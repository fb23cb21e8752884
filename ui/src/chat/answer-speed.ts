/** How fast an answer came: time to the first token, tokens a second. Pure: times are the caller's. */

import type { Usage } from "./completion";

export interface AnswerTimes {
  /** Milliseconds: when the request left that was answered, which is after a load, if one was waited for. */
  readonly sentAt: number;
  readonly firstAt: number | null;
  readonly lastAt: number | null;
  /** Pieces with text. Most engines send a token in each. */
  readonly pieces: number;
  /** What the engine counted; null until it tells. */
  readonly usage: Usage | null;
  /** Milliseconds that the load of the model took before, as far as this page waited for it. */
  readonly loadedFor: number;
}

export function startedAt(sentAt: number, loadedFor = 0): AnswerTimes {
  return { sentAt, firstAt: null, lastAt: null, pieces: 0, usage: null, loadedFor };
}

export function withPiece(times: AnswerTimes, hasText: boolean, usage: Usage | null, now: number): AnswerTimes {
  if (!hasText) return usage === null ? times : { ...times, usage };
  return {
    ...times,
    firstAt: times.firstAt ?? now,
    lastAt: now,
    pieces: times.pieces + 1,
    usage: usage ?? times.usage,
  };
}

/** Seconds to the first token; null before it. */
export function firstTokenSeconds(times: AnswerTimes): number | null {
  return times.firstAt === null ? null : (times.firstAt - times.sentAt) / 1000;
}

export function tokensOf(times: AnswerTimes): number {
  return times.usage?.completionTokens ?? times.pieces;
}

/** Shorter times say nothing about speed. */
const LEAST_MILLISECONDS = 50;

/** Tokens a second between the first and the last; null while there is too little to tell. */
export function tokensPerSecond(times: AnswerTimes): number | null {
  if (times.firstAt === null || times.lastAt === null) return null;
  const passed = times.lastAt - times.firstAt;
  const following = tokensOf(times) - 1;
  return passed < LEAST_MILLISECONDS || following < 1 ? null : (following * 1000) / passed;
}

/** "0.42 s to first token · 48.1 tokens/s · 120 tokens", as far as that is known. */
export function speedText(times: AnswerTimes): string {
  const first = firstTokenSeconds(times);
  const rate = tokensPerSecond(times);
  const tokens = tokensOf(times);
  return [
    times.loadedFor >= 1000 ? `${(times.loadedFor / 1000).toFixed(1)} s waiting for the load` : "",
    first === null ? "" : `${first.toFixed(2)} s to first token`,
    rate === null ? "" : `${rate.toFixed(1)} tokens/s`,
    tokens === 0 ? "" : `${times.usage === null ? "about " : ""}${tokens} ${tokens === 1 ? "token" : "tokens"}`,
  ]
    .filter((part) => part !== "")
    .join(" · ");
}
