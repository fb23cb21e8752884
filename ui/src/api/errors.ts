/** What the server says when it refuses, as one kind of error. */

export class ApiError extends Error {
  override readonly name = "ApiError";

  constructor(
    readonly status: number,
    /** The server's word for programs, such as `stale_plan`; empty where it said none. */
    readonly code: string,
    message: string,
    /** The field of the body or query that is wrong; empty where the server named none. */
    readonly field = "",
    readonly requestId = "",
    /** The whole answer: a refused plan brings the new one. */
    readonly body: unknown = null,
  ) {
    super(message);
  }
}

/** The frontend could not be reached at all. */
export class Unreachable extends Error {
  override readonly name = "Unreachable";

  constructor() {
    super("The frontend does not answer. What you typed is kept; try again in a moment.");
  }
}

export function errorOf(status: number, body: unknown, requestId: string): ApiError {
  const detail = detailOf(body);
  const message = detail.message || `The frontend answered ${status} and did not say why.`;
  return new ApiError(status, detail.code, message, detail.field, requestId, body);
}

interface Detail {
  readonly code: string;
  readonly message: string;
  readonly field: string;
}

/** Errors are `{"error": {"code", "message", …}}`; some older routes say `{"error": "text"}`. */
function detailOf(body: unknown): Detail {
  const error = isObject(body) ? body["error"] : undefined;
  if (typeof error === "string") return { code: "", message: error, field: "" };
  if (!isObject(error)) return { code: "", message: "", field: "" };
  return { code: text(error["code"]), message: text(error["message"]), field: text(error["field"]) };
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null;
}

/** A sentence for people, whatever went wrong. */
export function sentenceOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
