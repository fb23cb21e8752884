/** Keeps one stream of the server open: reads it, notices when it is dead, opens it again where it ended. */

import { isSessionNew } from "../api/transport";
import { noteServerTime } from "./clock";
import { EventStreamReader, type StreamEvent } from "./event-stream";
import { type Frame, isRecord, readFrame } from "./merge";
import type { Topic } from "./topics";

const BEAT_MILLISECONDS = 10_000;
/** A stream that is silent for so long is dead, whatever the network says. */
const DEAD_MILLISECONDS = 3 * BEAT_MILLISECONDS;
const FIRST_PAUSE_MILLISECONDS = 500;
const LONGEST_PAUSE_MILLISECONDS = 3000;

export interface StreamEars {
  /** `place` is where the stream is after these frames; empty where it did not say. */
  onFrames(frames: readonly Frame[], place: string): void;
  onBeat(): void;
  onOpen(): void;
  /** The stream broke; another attempt follows. `controlAwaySince`: the gateway answers, control does not. */
  onLost(controlAwaySince: number | null): void;
  /** The server refused: no attempt follows until somebody asks for one. */
  onRefused(status: number): void;
  /** Where to go on from. */
  place(): string;
}

export class LiveStream {
  private abort: AbortController | null = null;
  private failures = 0;

  constructor(private readonly ears: StreamEars) {}

  /** Follows these topics until `close`. Called again, it goes on with others. */
  follow(topics: readonly Topic[]): void {
    this.close();
    const abort = new AbortController();
    this.abort = abort;
    this.failures = 0;
    void this.keepOpen([...topics].sort(), abort.signal);
  }

  close(): void {
    this.abort?.abort();
    this.abort = null;
  }

  private async keepOpen(topics: readonly Topic[], signal: AbortSignal): Promise<void> {
    while (!signal.aborted && topics.length > 0) {
      const status = await this.readOnce(topics, signal);
      if (signal.aborted) return;
      if (isRefusal(status)) {
        this.ears.onRefused(status);
        return;
      }
      const awaySince = await controlAwaySince(signal);
      if (signal.aborted) return;
      this.ears.onLost(awaySince);
      await pause(pauseAfter(this.failures), signal);
      this.failures += 1;
    }
  }

  /** One connection, until it ends. Returns the status of a refusal, 0 for anything else. */
  private async readOnce(topics: readonly Topic[], signal: AbortSignal): Promise<number> {
    const watchdog = new Watchdog(signal);
    try {
      const response = await fetch(addressOf(topics, this.ears.place()), {
        headers: { Accept: "text/event-stream" },
        cache: "no-store",
        signal: watchdog.signal,
      });
      if (!response.ok || response.body === null) return response.status;
      this.failures = 0;
      this.ears.onOpen();
      await this.readBody(response.body, watchdog);
    } catch (error) {
      if (!isNetworkTrouble(error)) throw error;
    } finally {
      watchdog.stop();
    }
    return 0;
  }

  private async readBody(body: ReadableStream<Uint8Array>, watchdog: Watchdog): Promise<void> {
    const events = new EventStreamReader();
    const decoder = new TextDecoder();
    const reader = body.getReader();
    for (;;) {
      watchdog.restart();
      const { done, value } = await reader.read();
      if (done || watchdog.signal.aborted) return;
      const heard = events.feed(decoder.decode(value, { stream: true }));
      const place = heard.events.findLast((event) => event.id !== "")?.id ?? "";
      this.ears.onFrames(framesOf(heard.events), place);
      if (heard.beats > 0) this.ears.onBeat();
    }
  }
}

/** Whether another attempt would be refused as well. A session that is new may only be unknown yet. */
function isRefusal(status: number): boolean {
  return status === 400 || status === 403 || (status === 401 && !isSessionNew());
}

/** Ends a connection on which nothing arrives. */
class Watchdog {
  private readonly own = new AbortController();
  private timer: ReturnType<typeof setTimeout> | undefined;
  readonly signal: AbortSignal;

  constructor(outer: AbortSignal) {
    this.signal = AbortSignal.any([outer, this.own.signal]);
    this.restart();
  }

  restart(): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.own.abort(), DEAD_MILLISECONDS);
  }

  stop(): void {
    clearTimeout(this.timer);
  }
}

function framesOf(events: readonly StreamEvent[]): Frame[] {
  const frames: Frame[] = [];
  for (const { event, data } of events) {
    const content: unknown = JSON.parse(data);
    const frame = readFrame(event, content);
    if (frame !== null) frames.push(frame);
    else if (event === "ready") noteTime(content);
  }
  return frames;
}

function noteTime(content: unknown): void {
  if (isRecord(content) && typeof content["at"] === "string") noteServerTime(content["at"]);
}

function addressOf(topics: readonly Topic[], after: string): string {
  const query = new URLSearchParams({ topics: topics.join(",") });
  if (after !== "") query.set("after", after);
  return `/api/v1/live?${query}`;
}

export function pauseAfter(failures: number): number {
  return Math.min(FIRST_PAUSE_MILLISECONDS * 2 ** failures, LONGEST_PAUSE_MILLISECONDS);
}

function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}

/** Since when the gateway, which answers for itself, has not heard from control; null where that is not so. */
async function controlAwaySince(signal: AbortSignal): Promise<number | null> {
  try {
    const response = await fetch("/readyz", { cache: "no-store", signal });
    const seconds = secondsAway(await response.text());
    return seconds === null ? null : Date.now() - seconds * 1000;
  } catch (error) {
    if (!isNetworkTrouble(error)) throw error;
    return null;
  }
}

/** For how long control is away, by the gateway's `/readyz`; null when it is there, or nobody knows. */
export function secondsAway(answer: string): number | null {
  let content: unknown;
  try {
    content = JSON.parse(answer);
  } catch {
    return null;
  }
  const control = isRecord(content) ? content["control"] : null;
  if (!isRecord(control) || control["state"] !== "away") return null;
  return typeof control["for_seconds"] === "number" ? control["for_seconds"] : 0;
}

/** Broken connections are TypeErrors of fetch, ended ones AbortErrors; the rest are faults of ours. */
function isNetworkTrouble(error: unknown): boolean {
  return error instanceof TypeError || (error instanceof DOMException && error.name === "AbortError");
}
