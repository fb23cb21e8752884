/** Whether the palette or the list of keys is open. Kept outside of components: keys open them from anywhere. */

import { useSyncExternalStore } from "react";

export type Overlay = "none" | "palette" | "keys";

let overlay: Overlay = "none";
const listeners = new Set<() => void>();

export function openOverlay(next: Overlay): void {
  overlay = next;
  for (const listener of listeners) listener();
}

export function openPalette(): void {
  openOverlay("palette");
}

export function useOverlay(): Overlay {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => overlay,
  );
}
