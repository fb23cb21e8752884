/** All talks of this tab, and the answers that are on their way. Owned by the page as a whole, so that an answer goes on
 * while somebody looks at something else.
 */

import type { LoadNews } from "../models/load-news";
import { type AskOptions, askModel, type Gateway, NotAnswered, readAnswer } from "./asking";
import {
  type AnswerChange,
  answeredBy,
  asked,
  askedAgain,
  continued,
  ended,
  failed,
  heard,
  loads,
  messagesOf,
  newTalk,
  openAnswer,
  sent,
  stopped,
  type Talk,
  withAnswer,
} from "./talk";
import type { TalkStorage } from "./talk-storage";

export interface TalksWorld {
  readonly gateway: Gateway;
  readonly storage: TalkStorage;
  now(): number;
  newId(): string;
}

/** Listeners hear of text that arrives at most this often, and storage gets it at most each second. */
const TELL_MILLISECONDS = 50;
const KEEP_MILLISECONDS = 1000;
const PATH = "/v1/chat/completions";
const NODE_HEADER = "X-LocalAI-Node";

export class Talks {
  private readonly talks = new Map<string, Talk>();
  private order: readonly Talk[] = [];
  private readonly listeners = new Set<() => void>();
  private readonly streams = new Map<string, AbortController>();
  private readonly unkept = new Set<string>();
  private teller: ReturnType<typeof setTimeout> | null = null;
  private keeper: ReturnType<typeof setTimeout> | null = null;
  /** Whether the browser has no room to keep talks. */
  isFull = false;

  constructor(private readonly world: TalksWorld) {
    for (const talk of world.storage.all()) this.talks.set(talk.id, talk);
    this.sort();
  }

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  /** All talks, the latest first. */
  all = (): readonly Talk[] => this.order;

  get(id: string): Talk | undefined {
    return this.talks.get(id);
  }

  /** Begins a talk with its first question, and returns its id. */
  begin(model: string, wishes: Pick<Talk, "system" | "temperature">, question: string): string {
    const talk = { ...newTalk(this.world.newId(), model, this.world.now()), ...wishes };
    this.talks.set(talk.id, talk);
    this.ask(talk.id, question);
    return talk.id;
  }

  ask(id: string, question: string): void {
    const talk = this.talks.get(id);
    if (talk === undefined || openAnswer(talk) !== null || question.trim() === "") return;
    const ids = { exchange: this.world.newId(), answer: this.world.newId() };
    this.put(asked(talk, question, ids, this.world.now()));
    void this.answer(id, ids.answer);
  }

  /** Asks an earlier question again; what is on its way is stopped. */
  askAgain(id: string, exchangeId: string, question: string): void {
    this.stop(id);
    const talk = this.talks.get(id);
    if (talk === undefined || question.trim() === "") return;
    const answerId = this.world.newId();
    this.put(askedAgain(talk, exchangeId, question, answerId, this.world.now()));
    void this.answer(id, answerId);
  }

  stop(id: string): void {
    const talk = this.talks.get(id);
    const open = talk === undefined ? null : openAnswer(talk);
    if (open === null) return;
    this.change(id, open.id, stopped);
    this.streams.get(open.id)?.abort();
  }

  /** Takes in how far the load is that an answer waits for; null when there is none. */
  hear(id: string, answerId: string, news: LoadNews | null): void {
    this.change(id, answerId, heard(news, this.world.now()));
  }

  /** Sets the model or how it is to answer, from the next question on. */
  set(id: string, wishes: Partial<Pick<Talk, "model" | "system" | "temperature">>): void {
    const talk = this.talks.get(id);
    if (talk !== undefined) this.put({ ...talk, ...wishes });
  }

  remove(id: string): void {
    this.stop(id);
    this.talks.delete(id);
    this.unkept.delete(id);
    this.world.storage.forget(id);
    this.tellNow();
  }

  clear(): void {
    for (const id of [...this.talks.keys()]) this.stop(id);
    this.talks.clear();
    this.unkept.clear();
    this.world.storage.clear();
    this.tellNow();
  }

  /** Ends what is on its way: somebody else may use this browser next. */
  close(): void {
    for (const id of [...this.talks.keys()]) this.stop(id);
    this.keepNow();
    if (this.teller !== null) clearTimeout(this.teller);
  }

  /** Takes over what other tabs wrote. A talk that is being answered here stays as it is. */
  takeOver(id: string, read: () => Talk | undefined): void {
    const own = this.talks.get(id);
    if (own !== undefined && openAnswer(own) !== null) return;
    const talk = read();
    if (talk === undefined) this.talks.delete(id);
    else if (own === undefined || talk.changedAt >= own.changedAt) this.talks.set(id, talk);
    this.tellNow();
  }

  private async answer(id: string, answerId: string): Promise<void> {
    const stream = new AbortController();
    this.streams.set(answerId, stream);
    try {
      await this.stream(id, answerId, stream.signal);
      this.change(id, answerId, ended);
    } catch (error) {
      if (!stream.signal.aborted) this.change(id, answerId, failureOf(error));
    } finally {
      this.streams.delete(answerId);
      this.keepNow();
    }
  }

  private async stream(id: string, answerId: string, signal: AbortSignal): Promise<void> {
    const talk = this.talks.get(id);
    if (talk === undefined) return;
    const begun = this.world.now();
    let loadedFor = 0;
    const options: AskOptions = {
      signal,
      onSent: () => this.change(id, answerId, sent(this.world.now(), loadedFor)),
      onLoading: (news) => {
        loadedFor = this.world.now() - begun;
        this.change(id, answerId, loads(news));
      },
    };
    const response = await askModel(this.world.gateway, PATH, bodyOf(talk), options);
    this.change(id, answerId, answeredBy(response.headers.get(NODE_HEADER) ?? ""));
    await readAnswer(response, (piece) => this.change(id, answerId, continued(piece, this.world.now()), true));
  }

  private change(id: string, answerId: string, change: AnswerChange, isPart = false): void {
    const talk = this.talks.get(id);
    if (talk === undefined) return;
    const changed = withAnswer(talk, answerId, change, this.world.now());
    if (changed !== talk) this.put(changed, isPart);
  }

  private put(talk: Talk, isPart = false): void {
    this.talks.set(talk.id, talk);
    this.unkept.add(talk.id);
    if (isPart) this.tellSoon();
    else this.tellNow();
    this.keeper ??= setTimeout(() => this.keepNow(), KEEP_MILLISECONDS);
  }

  private tellSoon(): void {
    this.teller ??= setTimeout(() => this.tellNow(), TELL_MILLISECONDS);
  }

  private tellNow(): void {
    if (this.teller !== null) clearTimeout(this.teller);
    this.teller = null;
    this.sort();
    for (const listener of this.listeners) listener();
  }

  private keepNow(): void {
    if (this.keeper !== null) clearTimeout(this.keeper);
    this.keeper = null;
    for (const id of this.unkept) {
      const talk = this.talks.get(id);
      if (talk !== undefined) this.isFull = !this.world.storage.keep(talk);
    }
    this.unkept.clear();
  }

  private sort(): void {
    this.order = [...this.talks.values()].sort((one, other) => other.changedAt - one.changedAt);
  }
}

/** The body of the request for the last question of a talk. */
export function bodyOf(talk: Talk): string {
  return JSON.stringify({
    model: talk.model,
    messages: messagesOf(talk),
    stream: true,
    stream_options: { include_usage: true },
    ...(talk.temperature === null ? {} : { temperature: talk.temperature }),
  });
}

function failureOf(error: unknown): AnswerChange {
  if (error instanceof NotAnswered) return failed(error.message, error.news);
  return failed(error instanceof Error ? error.message : String(error));
}
