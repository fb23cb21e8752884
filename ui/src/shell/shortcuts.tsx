/** Keys that work everywhere: `/` and Ctrl-K search, `g` and a letter go to a page, `?` lists them. */

import { useEffect } from "react";
import { useLocation } from "wouter";

import { PAGES } from "../pages";
import { Dialog } from "../parts/dialog";
import { Fact, Facts } from "../parts/page";
import { Palette } from "./palette";
import { openOverlay, useOverlay } from "./palette-state";

const SECOND_KEY_MILLISECONDS = 1200;

export function Shortcuts() {
  const overlay = useOverlay();
  const [, navigate] = useLocation();
  useEffect(() => listen(navigate), [navigate]);
  if (overlay === "keys") return <KeysDialog />;
  return overlay === "palette" ? <Palette /> : null;
}

function listen(navigate: (path: string) => void): () => void {
  let goneAt = 0;
  const onKey = (event: KeyboardEvent) => {
    const isSecond = Date.now() - goneAt < SECOND_KEY_MILLISECONDS;
    goneAt = event.key === "g" ? Date.now() : 0;
    const act = actOf(event, isSecond);
    if (act === null) return;
    event.preventDefault();
    if (typeof act === "string") navigate(act);
    else openOverlay(act.overlay);
  };
  document.addEventListener("keydown", onKey);
  return () => document.removeEventListener("keydown", onKey);
}

/** What a key means: a path to go to, something to open, or nothing. */
function actOf(event: KeyboardEvent, isSecond: boolean): string | { overlay: "palette" | "keys" } | null {
  const hasModifier = event.ctrlKey || event.metaKey || event.altKey;
  if (hasModifier) return event.key.toLowerCase() === "k" && !event.altKey ? { overlay: "palette" } : null;
  if (isTyping(event.target)) return null;
  if (event.key === "/") return { overlay: "palette" };
  if (event.key === "?") return { overlay: "keys" };
  return isSecond ? (PAGES.find((page) => page.rail?.letter === event.key)?.path ?? null) : null;
}

function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable ||
      target.closest("input, textarea, select, [role=dialog], [role=listbox], [role=menu]") !== null)
  );
}

function KeysDialog() {
  return (
    <Dialog title="Keys" onClose={() => openOverlay("none")}>
      <Facts>
        <Fact name="/ or Ctrl-K">Search nodes, models, backends and operations, or find an act</Fact>
        {PAGES.map(
          (page) =>
            page.rail !== null && (
              <Fact key={page.path} name={`g ${page.rail.letter}`}>
                {page.title}
              </Fact>
            ),
        )}
        <Fact name="?">This list</Fact>
        <Fact name="Escape">Close what is in front</Fact>
      </Facts>
    </Dialog>
  );
}
