/** Follows a log: the last lines first, then every new one. Goes on by itself after a break, and marks the gap. */

import { useCallback, useEffect, useRef, useState } from "react";

import { errorOf } from "../api/errors";
import { EventStreamReader } from "../live/event-stream";
import { append, gap, type LogEntry, readEntry } from "./log-lines";

const FIRST_LINES = 200;
const PAUSE_MILLISECONDS = 2000;
const SHOW_MILLISECONDS = 250;

interface FollowedLog {
  readonly entries: readonly LogEntry[];
  readonly error: unknown;
  readonly isEnded: boolean;
  retry(): void;
}

export function useLog(nodeId: string, model: string, search: string, isHeld: boolean): FollowedLog {
  const [entries, setEntries] = useState<readonly LogEntry[]>([]);
  const [error, setError] = useState<unknown>(null);
  const [isEnded, setEnded] = useState(false);
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
    setEnded(false);
    follow(addressOf(nodeId, model, search), abort.signal, (more) => waiting.push(...more))
      .then(() => setEnded(true))
      .catch((refusal: unknown) => {
        if (!abort.signal.aborted) setError(refusal);
      });
    return () => {
      abort.abort();
      clearInterval(timer);
    };
  }, [nodeId, model, search, attempt]);

  return { entries, error, isEnded, retry: useCallback(() => setAttempt((before) => before + 1), []) };
}

function addressOf(nodeId: string, model: string, search: string): string {
  const query = new URLSearchParams({ follow: "true", lines: String(FIRST_LINES) });
  if (search !== "") query.set("search", search);
  const name = model.split("/").map(encodeURIComponent).join("/");
  return `/api/v1/nodes/${encodeURIComponent(nodeId)}/logs/${name}?${query}`;
}

/** Reads until the log ends; a refusal throws, a break is followed by another connection. */
async function follow(address: string, signal: AbortSignal, tell: (entries: LogEntry[]) => void): Promise<void> {
  let number = 0;
  const told = (entry: LogEntry | null) => {
    number += 1;
    if (entry !== null) tell([entry]);
  };
  while (await breaks(address, signal, (content) => told(readEntry(content, number)))) {
    told(gap(number, "The connection broke here; lines may be missing."));
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MILLISECONDS));
  }
}

/** One connection. Returns whether it broke, as opposed to the log having ended. */
async function breaks(address: string, signal: AbortSignal, tell: (content: unknown) => void): Promise<boolean> {
  const response = await fetch(address, { headers: { Accept: "text/event-stream" }, signal });
  if (!response.ok) throw errorOf(response.status, await response.json().catch(() => null), "");
  if (response.body === null) return false;
  try {
    for await (const content of contentsOf(response.body)) tell(content);
    return false;
  } catch (error) {
    if (signal.aborted || !(error instanceof TypeError)) throw error;
    return true;
  }
}

async function* contentsOf(body: ReadableStream<Uint8Array>): AsyncGenerator<unknown> {
  const events = new EventStreamReader();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    for (const event of events.feed(decoder.decode(value, { stream: true })).events) yield JSON.parse(event.data);
  }
}
