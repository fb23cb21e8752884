/** Entries of the record as rows: who did what to what, and before → after. Pure. */

import type { Schema } from "../api/client";

export type RecordEntry = Schema<"EventView">;

export interface Change {
  /** The field that changed; empty where the entry is about one value. */
  readonly field: string;
  readonly before: string;
  readonly after: string;
}

type Fields = Readonly<Record<string, unknown>>;

/** What became another one, field by field; fields that are equal are left out. */
export function changesOf(entry: RecordEntry): readonly Change[] {
  const { before, after } = entry.data;
  if (before === undefined && after === undefined) return [];
  if (!isFields(before) && !isFields(after)) return [{ field: "", before: textOf(before), after: textOf(after) }];
  const [was, is] = [isFields(before) ? before : {}, isFields(after) ? after : {}];
  return [...new Set([...Object.keys(was), ...Object.keys(is)])]
    .map((field) => ({ field, before: textOf(was[field]), after: textOf(is[field]) }))
    .filter((change) => change.before !== change.after);
}

/** Fields that have a place of their own in a row. */
const SHOWN_ELSEWHERE = new Set(["before", "after", "name", "why"]);

/** What else the entry says. */
export function detailsOf(entry: RecordEntry): readonly (readonly [string, string])[] {
  const subject = subjectOf(entry);
  return Object.entries(entry.data)
    .filter(([name, value]) => !SHOWN_ELSEWHERE.has(name) && !isEmpty(value) && value !== subject)
    .map(([name, value]) => [name, textOf(value)] as const);
}

/** Nothing, an empty list and no fields say nothing. */
function isEmpty(value: unknown): boolean {
  if (value === null || value === undefined || value === "") return true;
  if (Array.isArray(value)) return value.length === 0;
  return isFields(value) && Object.keys(value).length === 0;
}

/** What the entry is about, in one word or name. */
export function subjectOf(entry: RecordEntry): string {
  const { name, model, backend, id } = entry.data;
  const words = [name, model, backend, id].filter((word) => typeof word === "string" && word !== "");
  return String(words[0] ?? entry.node_id ?? "");
}

/** Why it happened, where the entry says so. */
export function whyOf(entry: RecordEntry): string {
  const { why } = entry.data;
  return typeof why === "string" ? why : "";
}

/** Of a second, in a time: nobody reads it. */
const FRACTION = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d+Z$/;

/** A value of the record as text. `–` stands for none. */
export function textOf(value: unknown): string {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "string") return value.replace(FRACTION, "$1Z");
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.length === 0 ? "–" : value.map(textOf).join(", ");
  if (isFields(value)) {
    return (
      Object.entries(value)
        .map(([name, each]) => `${name}=${textOf(each)}`)
        .join(" ") || "–"
    );
  }
  return String(value);
}

function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Kinds that are alarms: somebody should look. */
const ALARMS = new Set(["node.impersonation", "node.suspected", "brake.held"]);

export function isAlarm(entry: RecordEntry): boolean {
  return ALARMS.has(entry.kind);
}

export interface AuditQuery {
  readonly actor: string;
  readonly kind: string;
  readonly node: string;
  readonly text: string;
}

/** The query of the server for these filters; `before` is the oldest entry that is shown already. */
export function auditPath(query: AuditQuery, limit: number, before: number | null): string {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== "") words.set(name, value);
  if (before !== null) words.set("before", String(before));
  words.set("limit", String(limit));
  return `/api/v1/events?${words}`;
}

/** Older pages below newer ones, each entry once, the newest first. */
export function joined(...pages: (readonly RecordEntry[])[]): readonly RecordEntry[] {
  const entries = new Map<number, RecordEntry>();
  for (const page of pages) for (const entry of page) entries.set(entry.sequence, entry);
  return [...entries.values()].toSorted((one, other) => other.sequence - one.sequence);
}

/** Whether an entry that just arrived fits the filters, as the server would decide. */
export function isMeant(entry: RecordEntry, query: AuditQuery): boolean {
  const has = (text: string, part: string) => text.toLowerCase().includes(part.toLowerCase());
  return (
    (query.actor === "" || has(entry.actor, query.actor)) &&
    (query.kind === "" || entry.kind === query.kind || entry.kind.startsWith(`${query.kind}.`)) &&
    (query.node === "" || entry.node_id === query.node || entry.data["name"] === query.node) &&
    (query.text === "" || has(JSON.stringify(entry.data), query.text) || has(entry.kind, query.text))
  );
}
