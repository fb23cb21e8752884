/** A key as it is asked for. Pure. */

import type { Schema } from "../api/client";
import { shellCommand } from "../parts/shell-words";

export type KeyView = Schema<"KeyView">;
export type CreatedKey = Schema<"CreatedKey">;

export interface KeyDraft {
  readonly name: string;
  readonly scope: string;
  readonly expires: string;
  /** Names with blanks between them; only for keys that ask models. */
  readonly models: string;
  /** `""` nobody's; otherwise the name of a user. */
  readonly user: string;
}

export const SCOPES = ["inference", "viewer", "operator", "admin", "node"] as const;

export const LIFETIMES = [
  { id: "", label: "Never" },
  { id: "1d", label: "In a day" },
  { id: "30d", label: "In 30 days" },
  { id: "90d", label: "In 90 days" },
  { id: "365d", label: "In a year" },
] as const;

export const NEW_KEY: KeyDraft = { name: "", scope: "inference", expires: "90d", models: "", user: "" };

export function modelsOf(draft: KeyDraft): string[] {
  return draft.scope === "inference" ? draft.models.split(/[\s,]+/).filter(Boolean) : [];
}

export function keyAsk(draft: KeyDraft): Schema<"CreateKey"> {
  return {
    name: draft.name.trim(),
    scopes: [draft.scope],
    expires_in: draft.expires,
    user: draft.user,
    models: modelsOf(draft),
  };
}

export function keyCommand(draft: KeyDraft): string {
  const models = modelsOf(draft).flatMap((model) => ["--model", model]);
  const expires = draft.expires === "" ? [] : ["--expires", draft.expires];
  const owner = draft.user === "" ? ["--service"] : ["--user", draft.user];
  return shellCommand([
    "corral",
    "keys",
    "create",
    draft.name.trim() || "NAME",
    "--scope",
    draft.scope,
    ...expires,
    ...models,
    ...owner,
  ]);
}

/** "inference of chat, small": what a key opens. */
export function scopesText(key: Pick<KeyView, "scopes" | "models">): string {
  const of = key.models === null ? "" : ` of ${key.models.join(", ")}`;
  return key.scopes.join(", ") + of;
}

/** Keys that are shown: those that work, unless all are asked for. Keys of sessions come and go by themselves. */
export function shownKeys(keys: readonly KeyView[], isWhole: boolean): readonly KeyView[] {
  return keys.filter((key) => isWhole || (key.state === "active" && key.session === ""));
}

/** What gateways that did not answer in time mean for somebody. */
export function unconfirmedText(gateways: readonly string[], what: string): string {
  if (gateways.length === 0) return "";
  const noun = gateways.length === 1 ? "gateway" : "gateways";
  return `${gateways.length} ${noun} did not answer in time and ${what}: ${gateways.join(", ")}.`;
}
