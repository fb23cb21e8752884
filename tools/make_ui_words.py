"""Writes ui/src/words.gen.ts, the labels of states that the web page shows, from src/corral/wire/state_words.py.

The file is committed, so that the page can be built without Python. Nobody edits it; `make check` notices when it is
old.

    python tools/make_ui_words.py [--check]
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from corral.wire.state_words import MOVING, PROOFS, WORDS, StateWord, Subject, Tone, state_word

ROOT: Final = Path(__file__).resolve().parent.parent
FILE: Final = ROOT / "ui" / "src" / "words.gen.ts"
_HEAD: Final = """\
// Made by tools/make_ui_words.py from src/corral/wire/state_words.py; changes belong there.

export type Tone = {tones};

export interface StateWord {{
  readonly label: string;
  readonly tone: Tone;
  readonly glyph: string;
  readonly tooltip: string;
}}

export const WORDS = {{
{words}
}} as const satisfies Record<string, Record<string, StateWord>>;

export type Subject = keyof typeof WORDS;

/** What the target state `downloading` is shown as for these verbs. */
export const MOVING: Readonly<Record<string, string>> = {moving};

/** What proves that a target is done, by the rung that its reason names. */
export const PROOFS: Readonly<Record<string, string>> = {proofs};

/** How to show a state. One that a newer server sends is shown as it is. */
export function stateWord(subject: Subject, state: string): StateWord {{
  const words: Readonly<Record<string, StateWord>> = WORDS[subject];
  const word = Object.hasOwn(words, state) ? words[state] : undefined;
  return word ?? {{ label: state, tone: {tone}, glyph: {glyph}, tooltip: {tooltip} }};
}}

/** How to show the status of a target of an operation with this verb. */
export function targetWord(status: string, verb: string): StateWord {{
  return stateWord("target", status === "downloading" ? (MOVING[verb] ?? status) : status);
}}
"""


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def word_text(state: str, word: StateWord) -> str:
    fields = {"label": word.label, "tone": word.tone.value, "glyph": word.glyph, "tooltip": word.tooltip}
    inside = ", ".join(f"{name}: {quoted(value)}" for name, value in fields.items())
    return f"    {state}: {{ {inside} }},"


def subject_text(subject: Subject) -> str:
    lines = [word_text(state, word) for state, word in WORDS[subject].items()]
    return "\n".join([f"  {subject.value}: {{", *lines, "  },"])


def module_text() -> str:
    unknown = state_word(Subject.TARGET, "")
    return _HEAD.format(
        tones=" | ".join(quoted(tone.value) for tone in Tone),
        words="\n".join(map(subject_text, Subject)),
        moving="{ " + ", ".join(f"{verb}: {quoted(word)}" for verb, word in MOVING.items()) + " }",
        proofs="{\n" + "".join(f"  {quoted(rung)}: {quoted(text)},\n" for rung, text in PROOFS.items()) + "}",
        tone=quoted(unknown.tone.value),
        glyph=quoted(unknown.glyph),
        tooltip=quoted(unknown.tooltip),
    )


def main(words: Sequence[str]) -> int:
    text = module_text()
    is_same = FILE.is_file() and FILE.read_text(encoding="utf-8") == text
    name = FILE.relative_to(ROOT)
    if "--check" in words:
        if not is_same:
            print(f"{name} does not fit src/corral/wire/state_words.py: run `make docs`")
        return 0 if is_same else 1
    if not is_same:
        FILE.parent.mkdir(parents=True, exist_ok=True)
        FILE.write_text(text, encoding="utf-8")
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
