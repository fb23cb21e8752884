/** How wide the screen is, in three steps. For what CSS alone cannot decide. */

import { useSyncExternalStore } from "react";

export type Width = "phone" | "tablet" | "wide";

const tablet = matchMedia("(min-width: 641px)");
const wide = matchMedia("(min-width: 1100px)");

function subscribe(listener: () => void): () => void {
  for (const query of [tablet, wide]) query.addEventListener("change", listener);
  return () => {
    for (const query of [tablet, wide]) query.removeEventListener("change", listener);
  };
}

function current(): Width {
  if (wide.matches) return "wide";
  return tablet.matches ? "tablet" : "phone";
}

export function useWidth(): Width {
  return useSyncExternalStore(subscribe, current);
}
