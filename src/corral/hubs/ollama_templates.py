"""Says a template of Ollama with LocalAI's templates, where that is possible. Pure.

Taken are templates with one place each for system, prompt and response, one after the other. Others walk over messages
and tools by themselves, and have no counterpart: LocalAI's are rendered once for every message.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from corral.base.errors import InvalidInput

_ACTION: Final = re.compile(r"\{\{(?P<left>-(?=\s))?(?P<code>.*?)(?P<right>(?<=\s)-)?\}\}", re.DOTALL)
_SYSTEM: Final = ".System"
_PROMPT: Final = ".Prompt"
_RESPONSE: Final = ".Response"
_ORDER: Final = (_SYSTEM, _PROMPT, _RESPONSE)
_LONGEST: Final = 64 * 1024


@dataclass(slots=True)
class _TurnTexts:
    """What stands before and behind the content of one role."""

    before: str = ""
    after: str = ""
    is_there: bool = False


def convert_template(text: str) -> Mapping[str, object]:
    """Return LocalAI's templates for one of Ollama's. InvalidInput says what of it they cannot say."""
    if len(text) > _LONGEST:
        raise InvalidInput("template", f"it has more than {_LONGEST} characters")
    turns = _OllamaTurns().read(text)
    system, user, assistant = (turns[name] for name in _ORDER)

    def turn(role: str, texts: _TurnTexts) -> str:
        return f'{{{{ if eq .RoleName "{role}" }}}}{texts.before}{{{{ .Content }}}}{texts.after}{{{{ end }}}}'

    first = '{{ if and (eq .MessageIndex 0) (ne .RoleName "system") .SystemPrompt }}'
    default = f"{first}{system.before}{{{{ .SystemPrompt }}}}{system.after}{{{{ end }}}}"
    return {
        "chat_message": (default + turn("system", system) if system.is_there else "")
        + turn("user", user)
        + turn("assistant", assistant),
        "chat": "{{ .Input }}" + assistant.before,
        "completion": "{{ .Input }}",
        "join_chat_messages_by_character": "",
    }


class _OllamaTurns:
    """Walks over a template once."""

    def __init__(self) -> None:
        self._turns = {name: _TurnTexts() for name in _ORDER}
        self._pending = ""
        self._opened = ""

    def read(self, text: str) -> Mapping[str, _TurnTexts]:
        at, is_trimmed = 0, False
        for action in _ACTION.finditer(text):
            piece = text[at : action.start()]
            piece = piece.lstrip() if is_trimmed else piece
            self._pending += piece.rstrip() if action["left"] else piece
            self._take(action["code"].strip())
            at, is_trimmed = action.end(), bool(action["right"])
        self._pending += text[at:].lstrip() if is_trimmed else text[at:]
        return self._finished()

    def _take(self, code: str) -> None:
        condition = code.removeprefix("if ").strip() if code.startswith("if ") else ""
        if code in self._turns:
            self._place(code)
        elif condition in self._turns and not self._opened:
            if condition == _SYSTEM and self._pending.strip():
                raise InvalidInput("template", "it has a text before the part of the system")
            self._opened = condition
        elif code == "end" and self._opened:
            turn = self._turns[self._opened]
            if not turn.is_there:
                raise InvalidInput("template", "a part of it has no content")
            turn.after, self._opened, self._pending = self._pending, "", ""
        else:
            raise InvalidInput("template", f"it uses {{{{ {code[:60]} }}}}, which LocalAI's templates cannot say")

    def _place(self, name: str) -> None:
        turn = self._turns[name]
        later = _ORDER[_ORDER.index(name) + 1 :]
        if turn.is_there or self._opened not in ("", name) or any(self._turns[other].is_there for other in later):
            raise InvalidInput("template", f"it has {name} twice, inside of another part, or not in the usual order")
        turn.before, turn.is_there, self._pending = self._pending, True, ""

    def _finished(self) -> Mapping[str, _TurnTexts]:
        if self._opened or not self._turns[_PROMPT].is_there:
            raise InvalidInput("template", "it has no place for the prompt")
        response = self._turns[_RESPONSE]
        if response.is_there:
            response.after += self._pending
        else:
            response.before = self._pending
        if any("{{" in turn.before + turn.after for turn in self._turns.values()):
            raise InvalidInput("template", "an action of it is not closed")
        return self._turns
