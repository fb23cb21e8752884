/** Lines of a log as the page keeps them: a bounded number, long ones cut by the server. Pure. */

import { bytes, plural } from "../parts/format";

export interface LogEntry {
  /** Counts up: what tells two equal lines apart. */
  readonly number: number;
  readonly at: string;
  readonly stream: string;
  readonly text: string;
  /** Bytes of the whole line, where only its beginning is here; 0 otherwise. */
  readonly wholeBytes: number;
  /** Something is missing here; the text says what. */
  readonly isGap: boolean;
}

export const MOST_LINES = 1000;

/** Reads what one event of the log's stream says; null for one of another kind. */
export function readEntry(content: unknown, number: number): LogEntry | null {
  if (typeof content !== "object" || content === null) return null;
  const fields = content as Readonly<Record<string, unknown>>;
  if (typeof fields["gap"] === "string") return gap(number, gapText(fields["gap"], fields["lost"]));
  const text = fields["text"];
  if (typeof text !== "string") return null;
  return {
    number,
    at: typeof fields["at"] === "string" ? fields["at"] : "",
    stream: typeof fields["stream"] === "string" ? fields["stream"] : "",
    text,
    wholeBytes: fields["truncated"] === true && typeof fields["length"] === "number" ? fields["length"] : 0,
    isGap: false,
  };
}

function gapText(why: string, lost: unknown): string {
  return typeof lost === "number" && lost > 0 ? `${why} (${plural(lost, "line")})` : why;
}

export function gap(number: number, text: string): LogEntry {
  return { number, at: "", stream: "", text, wholeBytes: 0, isGap: true };
}

/** The newest lines; older ones go. */
export function append(entries: readonly LogEntry[], more: readonly LogEntry[]): readonly LogEntry[] {
  const all = [...entries, ...more];
  return all.length > MOST_LINES ? all.slice(-MOST_LINES) : all;
}

export function textOf(entry: LogEntry): string {
  return entry.wholeBytes > 0 ? `${entry.text} … (the line has ${bytes(entry.wholeBytes)})` : entry.text;
}

export type Severity = "error" | "warning" | "plain";

const ERROR = /\b(error|fatal|panic|critical|traceback|exception)\b/i;
const WARNING = /\bwarn(ing)?\b/i;
/** llama.cpp and others begin a line with a letter, after the time. */
const LETTER = /^[\d.:, -]*([EW]) /;
/** "0 errors", "no error", "error: 0" and the like say that there is none. */
const NONE = /\b(no|0|without) (error|warning)s?\b|\b(error|warning)s? ?[:=] ?(0|none|null)\b/gi;

/** How grave a line says it is. The stream tells nothing: many engines write everything to stderr. */
export function severityOf(text: string): Severity {
  const letter = LETTER.exec(text)?.[1];
  const said = text.replace(NONE, "");
  if (letter === "E" || ERROR.test(said)) return "error";
  return letter === "W" || WARNING.test(said) ? "warning" : "plain";
}

/** The time of day of a line, by this browser's zone. */
export function timeOf(at: string): string {
  const then = new Date(at);
  return Number.isNaN(then.getTime()) ? "" : then.toLocaleTimeString("en-GB");
}
