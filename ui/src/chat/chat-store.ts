/** The one place of this tab where talks live. Made when somebody first opens the chat, and kept while pages change. */

import { useSyncExternalStore } from "react";

import { ask } from "../api/client";
import { serverNow } from "../live/clock";
import type { Gateway } from "./asking";
import { type FreshKey, InferenceKeys } from "./inference-key";
import type { Talk } from "./talk";
import { readTalk, TalkStorage } from "./talk-storage";
import { Talks } from "./talks";

const keys = new InferenceKeys(() => ask<FreshKey>("POST", "/api/v1/session/inference-key"), serverNow);

/** The gateway of this fleet, asked with the page's own key. */
export const gateway: Gateway = {
  // The key is the only proof: a cookie beside it would be one more thing to forge.
  fetch: (path, init) => fetch(path, { ...init, credentials: "omit", cache: "no-store" }),
  key: () => keys.get(),
  renewKey: () => keys.renew(),
  sleep: (milliseconds, signal) =>
    new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, milliseconds);
      signal.addEventListener("abort", () => {
        clearTimeout(timer);
        reject(signal.reason);
      });
    }),
};

interface OwnedTalks {
  readonly person: string;
  readonly talks: Talks;
}

let owned: OwnedTalks | null = null;

/** The talks of a person. Those of somebody who used this tab before end. */
export function talksOf(person: string): Talks {
  if (owned?.person === person) return owned.talks;
  owned?.talks.close();
  keys.forget();
  const storage = new TalkStorage(window.localStorage, person);
  const talks = new Talks({
    gateway,
    storage,
    now: () => Date.now(),
    newId: () => crypto.randomUUID?.() ?? fallbackId(),
  });
  followOtherTabs(talks, storage);
  owned = { person, talks };
  return talks;
}

/** `crypto.randomUUID` is for safe origins only; over plain HTTP random numbers are. */
function fallbackId(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function followOtherTabs(talks: Talks, storage: TalkStorage): void {
  window.addEventListener("storage", (event) => {
    const id = event.key === null ? null : storage.idOf(event.key);
    if (id !== null) talks.takeOver(id, () => readTalk(event.newValue) ?? undefined);
  });
}

export function useTalks(talks: Talks): readonly Talk[] {
  return useSyncExternalStore(talks.subscribe, talks.all);
}
