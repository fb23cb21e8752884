/** Asks models at the gateway: with a fresh key, through a load if there is one, until the answer begins or is refused. */

import { EventStreamReader } from "../live/event-stream";
import { type LoadingAnswer, type LoadNews, newsOfAnswer } from "../models/load-news";
import { DONE, type Piece, type Refusal, readPiece, readRefusal } from "./completion";

/** The gateway refused, or the answer broke off. */
export class NotAnswered extends Error {
  override readonly name = "NotAnswered";

  constructor(
    message: string,
    readonly status = 0,
    /** How the load failed, if that was it. */
    readonly news: LoadNews | null = null,
    readonly requestId = "",
  ) {
    super(message);
  }
}

/** What asking needs of the world; tests pass their own. */
export interface Gateway {
  fetch(path: string, init: RequestInit): Promise<Response>;
  key(): Promise<string>;
  renewKey(): Promise<string>;
  sleep(milliseconds: number, signal: AbortSignal): Promise<void>;
}

export interface AskOptions {
  readonly signal: AbortSignal;
  /** The request leaves; again after each wait for a load. */
  onSent?(): void;
  /** The model is being loaded; the request is sent again by itself. */
  onLoading?(news: LoadNews): void;
}

const LONGEST_PAUSE_SECONDS = 3;
const UNREACHED = "The frontend does not answer. Try again in a moment.";
const LOADING = "model_loading";
const LOAD_FAILED = "model_load_failed";

/** The good answer to a request for a model. NotAnswered for all others; a model that is being loaded is waited for. */
export async function askModel(gateway: Gateway, path: string, body: BodyInit, options: AskOptions): Promise<Response> {
  let key = await gateway.key();
  let hasRenewed = false;
  for (;;) {
    options.onSent?.();
    const response = await reach(gateway, path, body, key, options.signal);
    if (response.ok) return response;
    const refusal = readRefusal(response.status, await response.text());
    if (response.status === 401 && !hasRenewed) {
      hasRenewed = true;
      key = await gateway.renewKey();
    } else if (response.status === 503 && refusal.code === LOADING) {
      hasRenewed = false;
      options.onLoading?.(newsOfAnswer((refusal.loading ?? {}) as LoadingAnswer));
      await gateway.sleep(pauseOf(response) * 1000, options.signal);
      key = await gateway.key();
    } else {
      throw notAnswered(response.status, refusal);
    }
  }
}

async function reach(
  gateway: Gateway,
  path: string,
  body: BodyInit,
  key: string,
  signal: AbortSignal,
): Promise<Response> {
  const headers: Record<string, string> = { Authorization: `Bearer ${key}` };
  if (typeof body === "string") headers["Content-Type"] = "application/json";
  try {
    return await gateway.fetch(path, { method: "POST", headers, body, signal });
  } catch (error) {
    if (error instanceof TypeError) throw new NotAnswered(UNREACHED);
    throw error;
  }
}

/** Seconds until the next try. The gateway itself waits for the load, so that asking early costs nothing. */
function pauseOf(response: Response): number {
  const stated = Number(response.headers.get("Retry-After") ?? "1");
  return Number.isFinite(stated) ? Math.min(Math.max(stated, 0.2), LONGEST_PAUSE_SECONDS) : 1;
}

function notAnswered(status: number, refusal: Refusal): NotAnswered {
  const hasNews = refusal.code === LOAD_FAILED && refusal.loading !== null;
  const news = hasNews ? newsOfAnswer(refusal.loading as LoadingAnswer) : null;
  return new NotAnswered(refusal.message, status, news, refusal.requestId);
}

/** Reads the pieces of a streamed answer until its end. NotAnswered if it breaks off. */
export async function readAnswer(response: Response, onPiece: (piece: Piece) => void): Promise<void> {
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  if (reader === undefined) throw new NotAnswered("The answer has no body.");
  const events = new EventStreamReader();
  const progress: Progress = { hasFinished: false, isOver: false };
  while (!progress.isOver) {
    const { value, done } = await nextPart(reader);
    for (const event of events.feed(value ?? "").events) take(event.data, progress, onPiece);
    if (done && !progress.hasFinished && !progress.isOver) throw new NotAnswered(BROKEN);
    progress.isOver ||= done;
  }
}

interface Progress {
  /** The model said why it ended; what follows only counts. */
  hasFinished: boolean;
  isOver: boolean;
}

function take(data: string, progress: Progress, onPiece: (piece: Piece) => void): void {
  progress.isOver ||= data === DONE;
  const piece = progress.isOver ? null : readPiece(data);
  if (piece === null) return;
  if (piece.error !== "") throw new NotAnswered(piece.error);
  progress.hasFinished ||= piece.finish !== "";
  onPiece(piece);
}

const BROKEN = "The answer broke off before its end. What came of it is kept.";

async function nextPart(reader: ReadableStreamDefaultReader<string>): Promise<ReadableStreamReadResult<string>> {
  try {
    return await reader.read();
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new NotAnswered(BROKEN);
  }
}
