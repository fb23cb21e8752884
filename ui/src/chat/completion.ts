/** What the events of a streamed answer say. Pure. */

export interface Usage {
  readonly promptTokens: number;
  readonly completionTokens: number;
}

export interface Piece {
  readonly text: string;
  /** What the model thinks before it answers, where it tells. */
  readonly reasoning: string;
  /** The model that answers, as it calls itself; empty where the event does not say. */
  readonly model: string;
  /** Why the answer ended, such as `stop` or `length`; empty while it goes on. */
  readonly finish: string;
  readonly usage: Usage | null;
  /** What went wrong after the answer had begun; empty when nothing did. */
  readonly error: string;
}

export const DONE = "[DONE]";

/** Reads the data of one event; null for what is no part of an answer. */
export function readPiece(data: string): Piece | null {
  const event = parsed(data);
  if (event === null) return null;
  const choice = fields(list(event["choices"])[0]);
  const delta = fields(choice["delta"]);
  return {
    text: text(delta["content"]),
    reasoning: text(delta["reasoning_content"]) || text(delta["reasoning"]),
    model: text(event["model"]),
    finish: text(choice["finish_reason"]),
    usage: usageOf(event["usage"]),
    error: errorOf(event["error"]),
  };
}

function usageOf(value: unknown): Usage | null {
  const usage = fields(value);
  const [prompt, completion] = [usage["prompt_tokens"], usage["completion_tokens"]];
  if (typeof completion !== "number") return null;
  return { promptTokens: typeof prompt === "number" ? prompt : 0, completionTokens: completion };
}

function errorOf(error: unknown): string {
  if (error === undefined || error === null) return "";
  return text(error) || text(fields(error)["message"]) || "The model's engine reported an error and did not say which.";
}

/** The sentence, the code and the load of a refusal. */
export interface Refusal {
  readonly message: string;
  readonly code: string;
  readonly loading: Readonly<Record<string, unknown>> | null;
  readonly requestId: string;
}

export function readRefusal(status: number, body: string): Refusal {
  const answer = parsed(body) ?? {};
  const error = fields(answer["error"]);
  const loading = answer["loading"];
  return {
    message: text(answer["error"]) || text(error["message"]) || `The frontend answered ${status} and did not say why.`,
    code: text(error["code"]),
    loading: isRecord(loading) ? loading : null,
    requestId: text(answer["request_id"]),
  };
}

type Fields = Readonly<Record<string, unknown>>;

function parsed(data: string): Fields | null {
  try {
    const value: unknown = JSON.parse(data);
    return isRecord(value) ? value : null;
  } catch {
    return null;
  }
}

function isRecord(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function fields(value: unknown): Fields {
  return isRecord(value) ? value : {};
}

function list(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}
