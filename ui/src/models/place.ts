/** The addresses of this room's pages. Names of models may contain anything, slashes and percent signs too. Pure. */

import { decoded } from "../parts/address";
import type { Tab } from "../parts/tabs";

export type ModelTab = "now" | "why" | "config" | "use" | "events";

export const MODEL_TABS: readonly (Tab & { readonly id: ModelTab })[] = [
  { id: "now", title: "Now" },
  { id: "why", title: "Why" },
  { id: "config", title: "Configuration" },
  { id: "use", title: "Use it" },
  { id: "events", title: "Events" },
];

export type ModelsPlace =
  | { readonly kind: "lists" }
  /** `tab` as the path names it; the query may name it instead. */
  | { readonly kind: "model"; readonly name: string; readonly tab: string };

/** The place that the encoded segments below `/models` mean. */
export function placeOf(segments: readonly string[]): ModelsPlace {
  const [name = "", tab = ""] = segments;
  return name === "" ? { kind: "lists" } : { kind: "model", name: decoded(name), tab };
}

export function modelPath(name: string, tab: ModelTab = "now"): string {
  const path = `/models/${encodeURIComponent(name)}`;
  return tab === "now" ? path : `${path}?tab=${tab}`;
}

export function chatPath(model: string): string {
  return `/chat?model=${encodeURIComponent(model)}`;
}
