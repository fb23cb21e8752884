/** A pull in words: the plan as text, and the command that does the same. Pure. */

import type { Schema } from "../api/client";
import { bytes, plural } from "../parts/format";
import { shell } from "./snippets";

type PullPlan = Schema<"PullPlanView">;

/** What is fetched, what is there already, and the room that there is. */
export function downloadText(plan: PullPlan): string {
  const unknown = plan.files.filter((file) => file.size === null).length;
  const more = unknown > 0 ? ` and ${plural(unknown, "file")} of unknown size` : "";
  const there = plan.bytes - plan.needed_bytes;
  const known = there > 0 ? `, of which ${bytes(there)} are there already` : "";
  const free = plan.store === "" ? "" : `; ${bytes(plan.free_bytes)} are free in ${plan.store}`;
  return `${bytes(plan.bytes)}${more}${known}${free}`;
}

/** Reasons to think twice before anything is downloaded. */
export function doubtsOf(plan: PullPlan): string[] {
  const chosen = plan.choices.find((choice) => choice.is_chosen);
  return chosen?.fits === false ? [`No machine of the fleet has the memory for ${plan.name}.`] : [];
}

export interface PullWish {
  readonly reference: string;
  readonly name: string;
  readonly build: string;
}

export function pullCommand({ reference, name, build }: PullWish): string {
  const options = [name === "" ? "" : ` --name ${word(name)}`, build === "" ? "" : ` --build ${word(build)}`];
  return `corral models pull ${word(reference)}${options.join("")}`;
}

/** A word of a shell, quoted only where it must be. */
export function word(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : shell(text);
}
