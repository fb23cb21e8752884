/** Keeps talks in this browser, and nowhere else. Each talk has an entry of its own, so that tabs do not overwrite each other. */

import type { Answer, AnswerState, Exchange, Talk } from "./talk";

/** The part of `localStorage` that is needed here. */
export type TextStorage = Pick<Storage, "getItem" | "setItem" | "removeItem" | "key" | "length">;

const PREFIX = "corral.talk.";
export const MOST_TALKS = 50;

/** The talks of one person; another who signs in with the same browser has others. */
export class TalkStorage {
  private readonly prefix: string;

  constructor(
    private readonly storage: TextStorage,
    person: string,
  ) {
    this.prefix = `${PREFIX}${encodeURIComponent(person)}.`;
  }

  /** All talks, the latest first. What cannot be read is left out. */
  all(): Talk[] {
    const talks = this.keys().flatMap((key) => readTalk(this.storage.getItem(key)) ?? []);
    return talks.sort((one, other) => other.changedAt - one.changedAt);
  }

  /** Keeps a talk; false if the browser has no room for it. The oldest make way. */
  keep(talk: Talk): boolean {
    const text = JSON.stringify(talk, (name, value) => (name === "news" ? null : value));
    this.forgetOldest(MOST_TALKS - 1, talk.id);
    for (;;) {
      try {
        this.storage.setItem(this.prefix + talk.id, text);
        return true;
      } catch {
        if (!this.forgetOldest(this.all().length - 2, talk.id)) return false;
      }
    }
  }

  forget(id: string): void {
    this.storage.removeItem(this.prefix + id);
  }

  clear(): void {
    for (const key of this.keys()) this.storage.removeItem(key);
  }

  /** The id of the talk whose entry this is; null for entries of others. */
  idOf(key: string): string | null {
    return key.startsWith(this.prefix) ? key.slice(this.prefix.length) : null;
  }

  private keys(): string[] {
    const keys = Array.from({ length: this.storage.length }, (_, index) => this.storage.key(index));
    return keys.filter((key) => key?.startsWith(this.prefix)) as string[];
  }

  /** Forgets the oldest but some; false if there was none to forget. */
  private forgetOldest(kept: number, except: string): boolean {
    const others = this.all().filter((talk) => talk.id !== except);
    const leaving = others.slice(Math.max(kept, 0));
    for (const talk of leaving) this.forget(talk.id);
    return leaving.length > 0;
  }
}

/** Reads a talk that was kept. An answer that was open belongs to a page that is gone. */
export function readTalk(text: string | null): Talk | null {
  const talk = record(parsed(text));
  if (typeof talk["id"] !== "string" || typeof talk["model"] !== "string" || !Array.isArray(talk["exchanges"]))
    return null;
  const temperature = talk["temperature"];
  return {
    id: talk["id"],
    model: talk["model"],
    system: string(talk["system"]),
    temperature: typeof temperature === "number" ? temperature : null,
    exchanges: talk["exchanges"].flatMap((exchange) => readExchange(record(exchange)) ?? []),
    changedAt: typeof talk["changedAt"] === "number" ? talk["changedAt"] : 0,
  };
}

function readExchange(exchange: Fields): Exchange | null {
  const answer = record(exchange["answer"]);
  if (typeof exchange["id"] !== "string" || typeof answer["id"] !== "string") return null;
  return { id: exchange["id"], question: string(exchange["question"]), answer: readAnswer(answer, answer["id"]) };
}

const ENDED: readonly AnswerState[] = ["done", "stopped", "failed"];

function readAnswer(answer: Fields, id: string): Answer {
  const state = ENDED.find((word) => word === answer["state"]);
  return {
    id,
    state: state ?? "stopped",
    text: string(answer["text"]),
    reasoning: string(answer["reasoning"]),
    model: string(answer["model"]),
    nodeId: string(answer["nodeId"]),
    finish: string(answer["finish"]),
    problem: string(answer["problem"]),
    times: readTimes(answer["times"]),
    news: null,
  };
}

function readTimes(value: unknown): Answer["times"] {
  const times = record(value);
  const number = (name: string) => (typeof times[name] === "number" ? times[name] : null);
  const sentAt = number("sentAt");
  if (sentAt === null) return null;
  const usage = record(times["usage"]);
  const [promptTokens, completionTokens] = [usage["promptTokens"], usage["completionTokens"]];
  const isCounted = typeof promptTokens === "number" && typeof completionTokens === "number";
  return {
    sentAt,
    firstAt: number("firstAt"),
    lastAt: number("lastAt"),
    pieces: number("pieces") ?? 0,
    usage: isCounted ? { promptTokens, completionTokens } : null,
    loadedFor: number("loadedFor") ?? 0,
  };
}

type Fields = Readonly<Record<string, unknown>>;

function record(value: unknown): Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : {};
}

function string(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function parsed(text: string | null): unknown {
  try {
    return text === null ? null : JSON.parse(text);
  } catch {
    return null;
  }
}
