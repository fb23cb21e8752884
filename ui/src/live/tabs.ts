/** One stream for all tabs of a browser: the tab that holds a lock reads it and passes on what it hears.
 *
 * Browsers allow six connections to a host, and a stream takes one for as long as it is open. A tab that is hidden for
 * a minute gives the lock away, or closes the stream if there is no other tab.
 */

import type { Frame, TopicState } from "./merge";
import type { Connection, LiveStore } from "./store";
import { LiveStream } from "./stream";
import type { Topic } from "./topics";

const CHANNEL = "corral-live";
const LOCK = "corral-live-stream";
export const HIDDEN_MILLISECONDS = 60_000;

type Message =
  | { readonly kind: "frames"; readonly frames: readonly Frame[]; readonly place: string }
  | { readonly kind: "beat" }
  | { readonly kind: "connection"; readonly connection: Connection }
  /** What a tab wants to follow; nothing when it sleeps or closes. */
  | { readonly kind: "wants"; readonly tab: string; readonly topics: readonly Topic[]; readonly isNew: boolean }
  /** A new leader asks what everybody wants. */
  | { readonly kind: "who" }
  | {
      readonly kind: "state";
      readonly to: string;
      readonly topics: ReadonlyMap<string, TopicState>;
      readonly place: string;
    };

export class LiveTabs {
  private readonly name = crypto.randomUUID();
  private readonly channel = openChannel();
  private readonly stream: LiveStream;
  private readonly wanted = new Map<string, readonly Topic[]>();
  private own: readonly Topic[] = [];
  private followed = "";
  private release: (() => void) | null = null;
  private request: AbortController | null = null;
  private sleepTimer: ReturnType<typeof setTimeout> | undefined;
  private isAwake = false;

  constructor(private readonly store: LiveStore) {
    this.stream = new LiveStream({
      onFrames: (frames, place) => this.hearFrames(frames, place),
      onBeat: () => this.hearBeat(),
      onOpen: () => {
        store.restart();
        this.connectionIs({ state: "open" });
      },
      onLost: (controlAwaySince) => this.connectionIs({ state: "lost", since: this.lostSince(), controlAwaySince }),
      onRefused: (status) => this.connectionIs({ state: "refused", status }),
      place: () => store.place,
    });
    if (this.channel !== null) this.channel.onmessage = (event: MessageEvent<Message>) => this.hear(event.data);
    document.addEventListener("visibilitychange", () => this.seen());
    window.addEventListener("pagehide", () => this.sleep());
    window.addEventListener("pageshow", () => this.seen());
  }

  /** What this tab follows from now on; nothing when nobody is signed in. */
  want(topics: readonly Topic[]): void {
    this.own = topics;
    if (topics.length === 0) {
      this.sleep();
      return;
    }
    if (this.isAwake) this.announce(false);
    else this.seen();
  }

  /** Opens the stream again after the server refused it, when somebody has signed in. */
  again(): void {
    this.followed = "";
    this.followWanted();
  }

  private seen(): void {
    clearTimeout(this.sleepTimer);
    if (document.visibilityState === "hidden") {
      this.sleepTimer = setTimeout(() => this.sleep(), HIDDEN_MILLISECONDS);
    } else if (!this.isAwake && this.own.length > 0) {
      this.wake();
    }
  }

  private wake(): void {
    this.isAwake = true;
    this.store.heard();
    this.store.connectionIs({ state: "connecting", since: Date.now() });
    this.announce(true);
    const request = new AbortController();
    this.request = request;
    if (navigator.locks === undefined || this.channel === null) {
      this.lead();
      return;
    }
    navigator.locks
      .request(LOCK, { signal: request.signal }, () => this.leadUntilReleased())
      .catch((error: unknown) => {
        if (!request.signal.aborted) throw error;
      });
  }

  private sleep(): void {
    if (!this.isAwake) return;
    this.isAwake = false;
    this.send({ kind: "wants", tab: this.name, topics: [], isNew: false });
    this.stream.close();
    this.followed = "";
    this.wanted.clear();
    this.request?.abort();
    this.release?.();
    this.release = null;
    this.store.connectionIs({ state: "off" });
  }

  private leadUntilReleased(): Promise<void> {
    return new Promise((resolve) => {
      if (!this.isAwake) {
        resolve();
        return;
      }
      this.release = resolve;
      this.lead();
    });
  }

  private lead(): void {
    this.release ??= () => undefined;
    this.wanted.set(this.name, this.own);
    this.send({ kind: "who" });
    this.followWanted();
  }

  private get isLeader(): boolean {
    return this.release !== null;
  }

  private announce(isNew: boolean): void {
    if (this.isLeader) {
      this.wanted.set(this.name, this.own);
      this.followWanted();
    } else {
      this.send({ kind: "wants", tab: this.name, topics: this.own, isNew });
    }
  }

  /** Follows what all tabs together want; a stream that already does is left alone. */
  private followWanted(): void {
    if (!this.isLeader) return;
    const union = [...new Set([...this.wanted.values()].flat())].sort();
    const key = union.join(",");
    if (key === this.followed) return;
    this.followed = key;
    this.store.followOnly(union);
    this.stream.follow(union);
  }

  private hear(message: Message): void {
    switch (message.kind) {
      case "frames":
        if (!this.isLeader) this.store.take(message.frames, message.place);
        return;
      case "beat":
        this.store.heard();
        return;
      case "connection":
        if (!this.isLeader) this.store.connectionIs(message.connection);
        return;
      case "wants":
        if (this.isLeader) this.hearWants(message.tab, message.topics, message.isNew);
        return;
      case "who":
        if (this.isAwake && !this.isLeader) this.announce(false);
        return;
      case "state":
        if (message.to === this.name) this.store.adopt(message.topics, message.place);
    }
  }

  private hearWants(tab: string, topics: readonly Topic[], isNew: boolean): void {
    if (topics.length === 0) this.wanted.delete(tab);
    else this.wanted.set(tab, topics);
    if (isNew) {
      this.store.flush();
      this.send({ kind: "state", to: tab, topics: this.store.all(), place: this.store.place });
      this.send({ kind: "connection", connection: this.store.connection });
    }
    this.followWanted();
  }

  private hearFrames(frames: readonly Frame[], place: string): void {
    this.store.take(frames, place);
    if (this.wanted.size > 1) this.send({ kind: "frames", frames, place });
  }

  private hearBeat(): void {
    this.store.heard();
    this.send({ kind: "beat" });
  }

  private connectionIs(connection: Connection): void {
    this.store.connectionIs(connection);
    this.send({ kind: "connection", connection });
  }

  private lostSince(): number {
    const { connection } = this.store;
    return connection.state === "lost" ? connection.since : Date.now();
  }

  private send(message: Message): void {
    this.channel?.postMessage(message);
  }
}

function openChannel(): BroadcastChannel | null {
  return typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel(CHANNEL);
}
