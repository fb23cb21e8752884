/** The state of a model from what is live: the list of models is fetched, replicas and loads arrive by themselves. Pure. */

import type { LoadRow, ReplicaRow } from "../live/topics";
import { type StateWord, stateWord } from "../words.gen";

/** What of a model decides its state, besides replicas and loads. */
export interface StatedModel {
  readonly name: string;
  readonly state: string;
  readonly alias_of?: string;
  readonly is_disabled?: boolean;
}

/** States that no replica and no load can change. */
const FIXED = new Set(["elsewhere", "unusable"]);
/** Phases of loads that are states of their own; every other phase means that somebody works on it. */
const RESTING = new Set(["failed", "pending"]);

export function servingName(model: StatedModel): string {
  return model.alias_of || model.name;
}

/** `disabled`, `loaded`, `not_reachable`, `failed`, `pending`, `loading`, `cold`, `elsewhere` or `unusable`. */
export function stateOf(model: StatedModel, replicas: readonly ReplicaRow[], loads: readonly LoadRow[]): string {
  if (model.is_disabled === true) return "disabled";
  if (replicas.some((replica) => replica.state === "loaded")) return isBarred(model) ? model.state : "loaded";
  const [load] = furthestFirst(loads);
  if (load !== undefined) return RESTING.has(load.phase) ? load.phase : "loading";
  if (replicas.some((replica) => isComing(replica.state))) return "loading";
  return FIXED.has(model.state) ? model.state : "cold";
}

/** Whether no request gets to what is loaded, which no replica tells. */
function isBarred(model: StatedModel): boolean {
  return model.state === "not_reachable";
}

function isComing(state: string): boolean {
  return state === "reserved" || state === "staging" || state === "loading";
}

/** The load that is furthest: one that somebody works on, then one that waits, then one that failed. */
export function furthestFirst(loads: readonly LoadRow[]): LoadRow[] {
  const rank = (load: LoadRow) => (load.phase === "failed" ? 2 : load.phase === "pending" ? 1 : 0);
  return [...loads].sort((one, other) => rank(one) - rank(other) || one.id.localeCompare(other.id));
}

export function modelWord(state: string): StateWord {
  return state === "pending" ? stateWord("load", state) : stateWord("model", state);
}

/** States that a filter names; `failing` is what attention links say. */
export function isShownBy(filter: string, state: string): boolean {
  if (filter === "" || filter === "all") return true;
  if (filter === "failing") return state === "failed" || state === "unusable" || state === "not_reachable";
  if (filter === "loading") return state === "loading" || state === "pending";
  return filter === state;
}

/** By the names of the models that they serve. */
export function byModel<Row extends { readonly model: string }>(
  rows: Iterable<Row>,
): ReadonlyMap<string, readonly Row[]> {
  const found = new Map<string, Row[]>();
  for (const row of rows) {
    const others = found.get(row.model);
    if (others === undefined) found.set(row.model, [row]);
    else others.push(row);
  }
  return found;
}
