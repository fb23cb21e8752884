/** Keeps the focus inside a dialog whose buttons go away or are disabled: whoever works by keyboard goes on here. */

import { type RefObject, useEffect, useRef } from "react";

/** Focuses the place after a change of the mark, unless the focus is somewhere in its dialog where it can stay. */
export function useKeptFocus(place: RefObject<HTMLElement | null>, mark: unknown): void {
  const before = useRef(mark);
  useEffect(() => {
    if (before.current === mark) return;
    before.current = mark;
    const frame = place.current?.closest("[role=dialog], [role=alertdialog]");
    const focused = document.activeElement;
    if (!frame?.contains(focused) || focused?.matches(":disabled")) place.current?.focus();
  }, [place, mark]);
}
