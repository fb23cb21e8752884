/** A talk with a model: what was asked and answered. Pure: every change gives a new talk. */

import type { LoadNews } from "../models/load-news";
import { type AnswerTimes, startedAt, withPiece } from "./answer-speed";
import type { Piece } from "./completion";

/** `waiting`: sent, nothing heard; `loading`: the model is being loaded, and is asked by itself when it is ready. */
export type AnswerState = "waiting" | "loading" | "streaming" | "done" | "stopped" | "failed";

export interface Answer {
  readonly id: string;
  readonly state: AnswerState;
  readonly text: string;
  readonly reasoning: string;
  /** The model that answered, as the answer says. */
  readonly model: string;
  /** The id of the node that answered, where the gateway tells. */
  readonly nodeId: string;
  readonly finish: string;
  /** Why there is no answer, or no whole one. */
  readonly problem: string;
  readonly times: AnswerTimes | null;
  /** How far the load is that it waits for, or how it failed. Not kept. */
  readonly news: LoadNews | null;
}

export interface Exchange {
  readonly id: string;
  readonly question: string;
  readonly answer: Answer;
}

export interface Talk {
  readonly id: string;
  readonly model: string;
  readonly system: string;
  /** null: as the model's configuration says. */
  readonly temperature: number | null;
  readonly exchanges: readonly Exchange[];
  /** Milliseconds since the epoch. */
  readonly changedAt: number;
}

export interface Message {
  readonly role: "system" | "user" | "assistant";
  readonly content: string;
}

export function newTalk(id: string, model: string, now: number): Talk {
  return { id, model, system: "", temperature: null, exchanges: [], changedAt: now };
}

const LONGEST_TITLE = 60;

export function titleOf(talk: Talk): string {
  const [line = ""] = (talk.exchanges[0]?.question ?? "").trim().split("\n");
  if (line === "") return "New talk";
  return line.length <= LONGEST_TITLE ? line : `${line.slice(0, LONGEST_TITLE - 1)}…`;
}

export function isOpen(answer: Answer): boolean {
  return answer.state === "waiting" || answer.state === "loading" || answer.state === "streaming";
}

export function openAnswer(talk: Talk): Answer | null {
  const last = talk.exchanges.at(-1)?.answer;
  return last !== undefined && isOpen(last) ? last : null;
}

/** What is sent for the last question. Questions without an answer are left out, so that they are not repeated. */
export function messagesOf(talk: Talk): Message[] {
  const messages: Message[] = talk.system.trim() === "" ? [] : [{ role: "system", content: talk.system }];
  talk.exchanges.forEach((exchange, index) => {
    const isLast = index === talk.exchanges.length - 1;
    if (!isLast && exchange.answer.text === "") return;
    messages.push({ role: "user", content: exchange.question });
    if (!isLast) messages.push({ role: "assistant", content: exchange.answer.text });
  });
  return messages;
}

export interface NewIds {
  readonly exchange: string;
  readonly answer: string;
}

/** Asks something more. */
export function asked(talk: Talk, question: string, ids: NewIds, now: number): Talk {
  const exchange = { id: ids.exchange, question, answer: emptyAnswer(ids.answer) };
  return { ...talk, exchanges: [...talk.exchanges, exchange], changedAt: now };
}

/** Asks an earlier question again, maybe in other words. What came after it is left behind. */
export function askedAgain(talk: Talk, exchangeId: string, question: string, answerId: string, now: number): Talk {
  const index = talk.exchanges.findIndex((exchange) => exchange.id === exchangeId);
  if (index < 0) return talk;
  const again = { id: exchangeId, question, answer: emptyAnswer(answerId) };
  return { ...talk, exchanges: [...talk.exchanges.slice(0, index), again], changedAt: now };
}

function emptyAnswer(id: string): Answer {
  return {
    id,
    state: "waiting",
    text: "",
    reasoning: "",
    model: "",
    nodeId: "",
    finish: "",
    problem: "",
    times: null,
    news: null,
  };
}

export type AnswerChange = (answer: Answer) => Answer;

/** Changes one answer, if it is still there and still open: a stream that was stopped or left behind changes nothing. */
export function withAnswer(talk: Talk, answerId: string, change: AnswerChange, now: number): Talk {
  const index = talk.exchanges.findIndex(({ answer }) => answer.id === answerId && isOpen(answer));
  const exchange = talk.exchanges[index];
  if (exchange === undefined) return talk;
  const answer = change(exchange.answer);
  if (answer === exchange.answer) return talk;
  return { ...talk, exchanges: talk.exchanges.with(index, { ...exchange, answer }), changedAt: now };
}

export function sent(now: number, loadedFor: number): AnswerChange {
  return (answer) => ({ ...answer, times: startedAt(now, loadedFor) });
}

export function loads(news: LoadNews | null): AnswerChange {
  return (answer) => ({ ...answer, state: "loading", news });
}

/** What was heard of the load meanwhile. When it is over, the gateway asks the model: only from then on counts what it takes. */
export function heard(news: LoadNews | null, now: number): AnswerChange {
  return (answer) => {
    if (answer.state !== "waiting" && answer.state !== "loading") return answer;
    if (news !== null) return answer.news === news ? answer : { ...answer, state: "loading", news };
    if (answer.state === "waiting") return answer;
    const times = answer.times && {
      ...answer.times,
      sentAt: now,
      loadedFor: answer.times.loadedFor + now - answer.times.sentAt,
    };
    return { ...answer, state: "waiting", news: null, times };
  };
}

export function answeredBy(nodeId: string): AnswerChange {
  return (answer) => ({ ...answer, nodeId });
}

export function continued(piece: Piece, now: number): AnswerChange {
  const hasText = piece.text !== "" || piece.reasoning !== "";
  return (answer) => ({
    ...answer,
    state: "streaming",
    text: answer.text + piece.text,
    reasoning: answer.reasoning + piece.reasoning,
    model: piece.model || answer.model,
    finish: piece.finish || answer.finish,
    news: null,
    times: answer.times === null ? null : withPiece(answer.times, hasText, piece.usage, now),
  });
}

export function ended(answer: Answer): Answer {
  return { ...answer, state: "done", news: null };
}

export function stopped(answer: Answer): Answer {
  return { ...answer, state: "stopped", news: null };
}

export function failed(problem: string, news: LoadNews | null = null): AnswerChange {
  return (answer) => ({ ...answer, state: "failed", problem, news });
}

/** Why an answer is not whole, though nothing failed. */
export function endNote(answer: Answer): string {
  if (answer.state === "stopped") return "Stopped.";
  if (answer.state === "done" && answer.finish === "length")
    return "The answer reached the most tokens that it may have.";
  if (answer.state === "done" && answer.finish === "content_filter") return "The engine held back the rest.";
  return "";
}
