/** What a look at an engine found, in words. Pure. */

import type { Schema } from "../api/client";
import { stateWord } from "../words.gen";
import type { Engine } from "./engine-draft";

/** The last look at each engine, by its id. */
export type Trials = ReadonlyMap<string, string>;

const MOST_NAMES = 3;

export function trialText(trial: Schema<"EngineTrial">, engine: Engine): string {
  const why = trial.reason === "" ? "" : `: ${trial.reason}`;
  const found = `${stateWord("engine", trial.state).label}${why} (${Math.round(trial.seconds * 1000)} ms).`;
  if (trial.has_model !== false) return found;
  const names = trial.models.slice(0, MOST_NAMES).join(", ") || "none";
  return `${found} It does not list ${engine.remote_model || engine.model}; it lists ${names}.`;
}
