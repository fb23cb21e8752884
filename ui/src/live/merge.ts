/** What becomes of a topic when a frame of the stream arrives. Pure, and the only place that decides it.
 *
 * Nothing goes back: a snapshot from another frontend, which may have heard less so far, does not turn a newer item
 * into an older one.
 */

export interface Frame {
  readonly kind: "snapshot" | "change";
  readonly topic: string;
  readonly items: Readonly<Record<string, unknown>>;
  readonly gone: readonly string[];
  /** Of a snapshot in several frames: the first one, and the last one. */
  readonly isFirst: boolean;
  readonly isWhole: boolean;
  /** There is no node or operation of that id. */
  readonly isMissing: boolean;
}

export interface TopicState {
  readonly items: ReadonlyMap<string, unknown>;
  /** Whether all items were there once; until then nobody can tell "none" from "not yet". */
  readonly isWhole: boolean;
  /** A snapshot of which some frames are still to come; what is shown stays until then. */
  readonly draft: ReadonlyMap<string, unknown> | null;
  /** The server knows nothing of that id. */
  readonly isMissing: boolean;
}

export const EMPTY: TopicState = { items: new Map(), isWhole: false, draft: null, isMissing: false };

export function apply(state: TopicState, frame: Frame): TopicState {
  return frame.kind === "snapshot" ? applySnapshot(state, frame) : applyChange(state, frame);
}

function applySnapshot(state: TopicState, frame: Frame): TopicState {
  const draft = new Map(frame.isFirst ? [] : (state.draft ?? []));
  for (const [key, item] of Object.entries(frame.items)) {
    draft.set(key, newerOf(frame.topic, state.items.get(key), item));
  }
  if (!frame.isWhole) return { ...state, draft };
  const items = sameOrNew(state.items, draft);
  const isNews = items !== state.items || !state.isWhole || state.draft !== null || state.isMissing !== frame.isMissing;
  return isNews ? { items, isWhole: true, draft: null, isMissing: frame.isMissing } : state;
}

function applyChange(state: TopicState, frame: Frame): TopicState {
  const items = new Map(state.items);
  const draft = state.draft === null ? null : new Map(state.draft);
  for (const [key, item] of Object.entries(frame.items)) {
    items.set(key, newerOf(frame.topic, items.get(key), item));
    draft?.set(key, item);
  }
  for (const key of frame.gone) {
    items.delete(key);
    draft?.delete(key);
  }
  trim(frame.topic, items);
  return { ...state, items, draft, isMissing: frame.isMissing };
}

/** Entries of the record that are kept; older ones are asked for, page by page. */
const MOST_EVENTS = 500;

function trim(topic: string, items: Map<string, unknown>): void {
  if (topic !== "events") return;
  for (const key of items.keys()) {
    if (items.size <= MOST_EVENTS) return;
    items.delete(key);
  }
}

/** The state to go on from with a new connection: a snapshot that was cut off is begun again. */
export function withoutDraft(state: TopicState): TopicState {
  return state.draft === null ? state : { ...state, draft: null };
}

/** The old object where nothing differs, so that what shows it need not be drawn again. */
function sameOrNew(
  before: ReadonlyMap<string, unknown>,
  after: ReadonlyMap<string, unknown>,
): ReadonlyMap<string, unknown> {
  if (before.size !== after.size) return after;
  for (const [key, item] of after) if (before.get(key) !== item) return after;
  return before;
}

/** Which of two states of an item is shown: the arriving one, unless it is older or nothing differs. */
export function newerOf(topic: string, shown: unknown, arriving: unknown): unknown {
  if (!isRecord(shown) || !isRecord(arriving)) return arriving;
  if (isOlder(topic, arriving, shown)) return shown;
  const merged = keepProgress(shown, arriving);
  return isSame(shown, merged) ? shown : merged;
}

/** The field of a topic's items that only grows. */
const AGES: Readonly<Record<string, string>> = { nodes: "heard_at", operations: "changed_at", operation: "changed_at" };

function isOlder(topic: string, arriving: Fields, shown: Fields): boolean {
  const field = AGES[topic.split(":", 1)[0] ?? ""];
  if (field === undefined) return false;
  const [before, after] = [shown[field], arriving[field]];
  return typeof before === "string" && typeof after === "string" && Date.parse(after) < Date.parse(before);
}

/** Bytes and percentages of one attempt only grow: another frontend may not have heard the latest ones yet. */
function keepProgress(shown: Fields, arriving: Fields): Fields {
  const isSameAttempt =
    shown["attempts"] === arriving["attempts"] &&
    shown["status"] === arriving["status"] &&
    shown["state"] === arriving["state"] &&
    shown["phase"] === arriving["phase"] &&
    shown["file_name"] === arriving["file_name"];
  if (!isSameAttempt) return arriving;
  const kept: Record<string, unknown> = {};
  for (const field of ["percentage", "progress", "current_bytes", "bytes"]) {
    const [before, after] = [shown[field], arriving[field]];
    if (typeof before === "number" && typeof after === "number" && after < before) kept[field] = before;
  }
  return Object.keys(kept).length === 0 ? arriving : { ...arriving, ...kept };
}

export type Fields = Readonly<Record<string, unknown>>;

export function isRecord(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export function isSame(one: unknown, other: unknown): boolean {
  if (Object.is(one, other)) return true;
  if (Array.isArray(one) && Array.isArray(other)) {
    return one.length === other.length && one.every((item, index) => isSame(item, other[index]));
  }
  if (!isRecord(one) || !isRecord(other)) return false;
  const keys = Object.keys(one);
  return keys.length === Object.keys(other).length && keys.every((key) => key in other && isSame(one[key], other[key]));
}

/** Reads one event of the stream; null for one that this version does not know. */
export function readFrame(event: string, data: unknown): Frame | null {
  if ((event !== "snapshot" && event !== "change") || !isRecord(data) || typeof data["topic"] !== "string") return null;
  return {
    kind: event,
    topic: data["topic"],
    items: isRecord(data["items"]) ? data["items"] : {},
    gone: Array.isArray(data["gone"]) ? data["gone"].filter((key) => typeof key === "string") : [],
    isFirst: data["first"] === true,
    isWhole: data["whole"] === true,
    isMissing: data["missing"] === true,
  };
}
