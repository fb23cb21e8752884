/** How large an entry of a gallery is, and how many nodes it fits. */

import type { Schema } from "../api/client";
import { bytes, count } from "../parts/format";
import { WordPill } from "../parts/status-pill";
import type { StateWord } from "../words.gen";

type Fit = Schema<"GalleryFitView">;

export function FitWord({ fit }: { fit: Fit | null | undefined }) {
  return fit === null || fit === undefined ? <span>–</span> : <WordPill word={fitWord(fit)} />;
}

/** Green where a node is known to have the memory, purple where none has, grey where nobody can tell. */
export function fitWord(fit: Fit): StateWord {
  if (fit.verdict === "fits") {
    return { label: `${count(fit.fitting)} of ${count(fit.nodes)}`, tone: "green", glyph: "●", tooltip: fit.reason };
  }
  if (fit.verdict === "blocked") return { label: "None", tone: "purple", glyph: "⊘", tooltip: fit.reason };
  return { label: "Unknown", tone: "grey", glyph: "○", tooltip: fit.reason };
}

/** A size that was guessed from names of files has a tilde, as on the command line. */
export function sizeText(entry: { readonly bytes: number | null; readonly is_size_guessed: boolean }): string {
  return entry.bytes === null ? "–" : `${entry.is_size_guessed ? "~" : ""}${bytes(entry.bytes)}`;
}
