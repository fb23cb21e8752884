/** Follows a log: the last lines first, then every new one. Goes on by itself after a break, and marks the gap. */

import { useCallback, useEffect, useRef, useState } from "react";

import { ApiError, errorOf, Unreachable } from "../api/errors";
import { send } from "../api/transport";
import { EventStreamReader, type StreamEvent } from "../live/event-stream";
import { append, gap, type LogEntry, readEntry } from "./log-lines";

const FIRST_LINES = 200;
const PAUSE_MILLISECONDS = 2000;
const SHOW_MILLISECONDS = 250;

interface FollowedLog {
  readonly entries: readonly LogEntry[];
  readonly error: unknown;
  retry(): void;
}

export function useLog(nodeId: string, model: string, search: string, isHeld: boolean): FollowedLog {
  const [entries, setEntries] = useState<readonly LogEntry[]>([]);
  const [error, setError] = useState<unknown>(null);
  const [attempt, setAttempt] = useState(0);
  const held = useRef(isHeld);
  held.current = isHeld;

  // biome-ignore lint/correctness/useExhaustiveDependencies: `attempt` is another try
  useEffect(() => {
    const abort = new AbortController();
    const waiting: LogEntry[] = [];
    const timer = setInterval(() => {
      if (held.current || waiting.length === 0) return;
      const more = waiting.splice(0);
      setEntries((before) => append(before, more));
    }, SHOW_MILLISECONDS);
    setEntries([]);
    setError(null);
    follow(addressOf(nodeId, model, search), abort.signal, (entry) => waiting.push(entry)).catch((refusal: unknown) => {
      if (!abort.signal.aborted) setError(refusal);
    });
    return () => {
      abort.abort();
      clearInterval(timer);
    };
  }, [nodeId, model, search, attempt]);

  return { entries, error, retry: useCallback(() => setAttempt((before) => before + 1), []) };
}

function addressOf(nodeId: string, model: string, search: string): string {
  const query = new URLSearchParams({ follow: "true", lines: String(FIRST_LINES) });
  if (search !== "") query.set("search", search);
  return `/api/v1/nodes/${encodeURIComponent(nodeId)}/logs/${encodeURIComponent(model)}?${query}`;
}

/** Reads for as long as somebody looks. A refusal throws; after a break it goes on with the last line that came. */
async function follow(address: string, signal: AbortSignal, tell: (entry: LogEntry) => void): Promise<void> {
  let number = 0;
  let place = "";
  let isBroken = false;
  const take = (event: StreamEvent) => {
    const entry = readEntry(JSON.parse(event.data), number);
    if (event.id !== "") place = event.id;
    if (entry !== null) tell(entry);
    number += 1;
    isBroken = false;
  };
  for (;;) {
    await read(address, place, signal, take);
    if (!isBroken) tell(gap(number, "The connection broke here; trying again."));
    number += 1;
    isBroken = true;
    await pause(signal);
  }
}

/** One connection, until it ends or breaks. */
async function read(
  address: string,
  place: string,
  signal: AbortSignal,
  take: (event: StreamEvent) => void,
): Promise<void> {
  const headers = { Accept: "text/event-stream", ...(place === "" ? {} : { "Last-Event-ID": place }) };
  try {
    const response = await send(new Request(new URL(address, window.location.origin), { headers, signal }));
    if (!response.ok) throw errorOf(response.status, await response.json().catch(() => null), "");
    if (response.body !== null) await readEvents(response.body, take);
  } catch (error) {
    const isBreak = error instanceof Unreachable || error instanceof TypeError || isForNow(error);
    if (signal.aborted || !isBreak) throw error;
  }
}

/** Whether a frontend refuses only for the moment: it begins or ends, or its database is away. */
function isForNow(error: unknown): boolean {
  return error instanceof ApiError && error.status >= 502;
}

async function readEvents(body: ReadableStream<Uint8Array>, take: (event: StreamEvent) => void): Promise<void> {
  const events = new EventStreamReader();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    for (const event of events.feed(decoder.decode(value, { stream: true })).events) take(event);
  }
}

function pause(signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, PAUSE_MILLISECONDS);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
