/** The server's time: ages are told by it, so that a wrong clock of this machine makes no node look dead. */

import { useSyncExternalStore } from "react";

let offset = 0;
let now = Date.now();
const listeners = new Set<() => void>();
let timer: ReturnType<typeof setInterval> | undefined;

/** Notes what the server says the time is. Small differences are delay, not a wrong clock. */
export function noteServerTime(at: string): void {
  const told = Date.parse(at);
  if (Number.isNaN(told)) return;
  const difference = told - Date.now();
  offset = Math.abs(difference) < 2000 ? 0 : difference;
}

export function serverNow(): number {
  return Date.now() + offset;
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  now = serverNow();
  timer ??= setInterval(tick, 1000);
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) {
      clearInterval(timer);
      timer = undefined;
    }
  };
}

function tick(): void {
  now = serverNow();
  for (const listener of listeners) listener();
}

/** The server's time in milliseconds, once a second for all who ask. */
export function useNow(): number {
  return useSyncExternalStore(subscribe, () => now);
}
