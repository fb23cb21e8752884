/** The live state of the fleet in this tab: topics with their items, and how the stream itself is.
 *
 * Frames are collected and applied together, at most four times a second; whoever shows something is told once for
 * each batch.
 */

import { apply, EMPTY, type Frame, type TopicState, withoutDraft } from "./merge";
import type { Topic } from "./topics";

export const BATCH_MILLISECONDS = 250;

export type Connection =
  /** Nothing is followed: nobody is signed in, or what they may see is not on the stream. */
  | { readonly state: "off" }
  /** The first snapshot is on its way. */
  | { readonly state: "connecting"; readonly since: number }
  | { readonly state: "open" }
  /** The stream broke and is being opened again. `controlAwaySince`: the gateway answers, control does not. */
  | { readonly state: "lost"; readonly since: number; readonly controlAwaySince: number | null }
  /** The server refused it: the session is over, or nothing may be seen. */
  | { readonly state: "refused"; readonly status: number };

type Listener = () => void;

export class LiveStore {
  private topics = new Map<string, TopicState>();
  private waiting: Frame[] = [];
  private timer: ReturnType<typeof setTimeout> | undefined;
  private lastFlush = 0;
  private readonly topicListeners = new Map<string, Set<Listener>>();
  private readonly connectionListeners = new Set<Listener>();
  private connectionNow: Connection = { state: "off" };

  /** When the stream last showed that it lives, by this machine's clock. */
  heardAt = Date.now();
  /** Where the stream is; it goes on from here after a break. */
  place = "";
  private nextPlace = "";
  /** Topics that nobody follows any more. What is known of them holds until the stream moves on without them. */
  private left = new Set<string>();

  get connection(): Connection {
    return this.connectionNow;
  }

  topic(topic: Topic): TopicState {
    return this.topics.get(topic) ?? EMPTY;
  }

  all(): ReadonlyMap<string, TopicState> {
    return this.topics;
  }

  /** `place` is where the stream is after these frames; empty where it did not say. */
  take(frames: readonly Frame[], place: string): void {
    this.heard();
    if (place !== "") this.nextPlace = place;
    if (frames.length === 0 && place === "") return;
    this.waiting.push(...frames);
    this.timer ??= setTimeout(() => this.flush(), this.delay());
  }

  heard(): void {
    this.heardAt = Date.now();
  }

  connectionIs(connection: Connection): void {
    const isSameAgain = JSON.stringify(connection) === JSON.stringify(this.connectionNow);
    this.connectionNow = connection;
    if (!isSameAgain) for (const listener of this.connectionListeners) listener();
  }

  /** A new connection begins: parts of a snapshot that was cut off are dropped. */
  restart(): void {
    this.flush();
    for (const [topic, state] of this.topics) this.topics.set(topic, withoutDraft(state));
  }

  /** What another tab has, for one that just opened. */
  adopt(topics: ReadonlyMap<string, TopicState>, place: string): void {
    for (const [topic, state] of topics) {
      if (!this.topic(topic as Topic).isWhole) this.topics.set(topic, state);
      this.tell(topic);
    }
    this.place = place;
    this.nextPlace = place;
    this.heard();
  }

  /**
   * From now on the stream is about these topics alone. The others are forgotten when its place changes: until then the
   * place says that they are known, and a stream that goes on from it with one of them does not tell it again.
   */
  followOnly(topics: readonly string[]): void {
    this.flush();
    this.left = new Set([...this.topics.keys()].filter((topic) => !topics.includes(topic)));
  }

  /** Forget everything: another person may sign in next. */
  clear(): void {
    this.topics = new Map();
    this.waiting = [];
    this.place = "";
    this.nextPlace = "";
    this.left.clear();
    for (const topic of this.topicListeners.keys()) this.tell(topic);
  }

  subscribe(topic: Topic, listener: Listener): () => void {
    const listeners = this.topicListeners.get(topic) ?? new Set();
    this.topicListeners.set(topic, listeners.add(listener));
    return () => listeners.delete(listener);
  }

  subscribeConnection(listener: Listener): () => void {
    this.connectionListeners.add(listener);
    return () => this.connectionListeners.delete(listener);
  }

  flush(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.lastFlush = Date.now();
    const frames = this.waiting;
    this.waiting = [];
    if (this.place !== this.nextPlace) this.forgetLeft();
    this.place = this.nextPlace;
    const changed = new Set<string>();
    for (const frame of frames) {
      const before = this.topics.get(frame.topic) ?? EMPTY;
      const after = apply(before, frame);
      if (after !== before) {
        this.topics.set(frame.topic, after);
        changed.add(frame.topic);
      }
    }
    for (const topic of changed) this.tell(topic);
  }

  private forgetLeft(): void {
    for (const topic of this.left) this.topics.delete(topic);
    this.left.clear();
  }

  private delay(): number {
    return Math.max(0, this.lastFlush + BATCH_MILLISECONDS - Date.now());
  }

  private tell(topic: string): void {
    for (const listener of this.topicListeners.get(topic) ?? []) listener();
  }
}
