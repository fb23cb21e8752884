/** Configurations that somebody is editing. They outlive the page that shows them: no typed text is lost on the way. */

import { useSyncExternalStore } from "react";

export interface Draft {
  readonly text: string;
  /** The revision that it was begun from. */
  readonly base: string;
}

const drafts = new Map<string, Draft>();
const listeners = new Set<() => void>();

export function setDraft(model: string, draft: Draft | null): void {
  if (draft === null) drafts.delete(model);
  else drafts.set(model, draft);
  for (const listener of listeners) listener();
}

export function useDraft(model: string): Draft | null {
  return useSyncExternalStore(subscribe, () => drafts.get(model) ?? null);
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
