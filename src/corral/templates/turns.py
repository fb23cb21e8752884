"""Reads the messages of a request as OpenAI has them. Pictures and sounds become marks and are not fetched. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from corral.base.errors import InvalidInput
from corral.templates import template_data
from corral.templates.evaluate import Allowance, execute
from corral.templates.parser import parse
from corral.templates.template_data import mapping, text
from corral.templates.values import StructValue, is_list

DEFAULT_MULTIMODAL: Final = (
    "{{ range .Audio }}<__media__>{{end}}{{ range .Images }}<__media__>{{end}}{{ range .Video }}[vid-{{.ID}}]{{end}}"
    "{{.Text}}"
)
_MEDIA: Final = {"audio": 0, "audio_url": 0, "input_audio": 0, "image": 1, "image_url": 1, "video": 2, "video_url": 2}
"""Which count a part of a message belongs to."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a chat."""

    role: str
    content: str
    """The text of the turn; marks stand for pictures and sounds."""
    name: str = ""
    function_call: object = None
    tool_calls: list[StructValue] | None = None


def read_turns(messages: Sequence[object], multimodal: str, allowance: Allowance) -> list[Turn]:
    """Read messages. `multimodal` is the template for those with pictures, sounds or films; empty: LocalAI's."""
    reader = _TurnReader(multimodal or DEFAULT_MULTIMODAL, allowance)
    return [reader.turn(message, f"messages[{index}]") for index, message in enumerate(messages)]


class _TurnReader:
    def __init__(self, multimodal: str, allowance: Allowance) -> None:
        self._multimodal = multimodal
        self._allowance = allowance
        self._totals = [0, 0, 0]
        """Sounds, pictures and films so far."""

    def turn(self, message: object, where: str) -> Turn:
        members = mapping(message, where)
        content, calls = members.get("content"), members.get("tool_calls")
        return Turn(
            role=text(members.get("role"), f"{where}.role"),
            name=text(members.get("name"), f"{where}.name"),
            content=self._content(content, f"{where}.content"),
            function_call=template_data.anything(members.get("function_call"), f"{where}.function_call"),
            tool_calls=None if calls is None else template_data.tool_calls(calls, f"{where}.tool_calls"),
        )

    def _content(self, content: object, where: str) -> str:
        return self._with_media(content, where) if is_list(content) else text(content, where)

    def _with_media(self, parts: Sequence[object], where: str) -> str:
        counts = [0, 0, 0]
        texts: list[str] = []
        for index, part in enumerate(parts):
            members = mapping(part, f"{where}[{index}]")
            kind = text(members.get("type"), f"{where}[{index}].type")
            if kind == "text":
                texts.append(text(members.get("text"), f"{where}[{index}].text"))
            elif kind in _MEDIA:
                _check_medium(members, kind, f"{where}[{index}]")
                counts[_MEDIA[kind]] += 1
                self._totals[_MEDIA[kind]] += 1
            else:
                raise InvalidInput(f"{where}[{index}].type", f"{kind!r} is not supported")
        data = template_data.media(counts, self._totals, "".join(texts))
        return execute(parse(self._multimodal, "multimodal"), data, self._allowance)


def _check_medium(part: Mapping[str, object], kind: str, where: str) -> None:
    """Refuse an address that nobody could fetch: LocalAI leaves such a picture out, and the model answers without."""
    if kind == "input_audio":
        return
    key = kind if kind.endswith("_url") else f"{kind}_url"
    link = part.get(key)
    url = link if isinstance(link, str) else text(mapping(link, f"{where}.{key}").get("url"), f"{where}.{key}.url")
    if not url.startswith(("data:", "http://", "https://")):
        raise InvalidInput(f"{where}.{key}.url", "must begin with data:, http:// or https://")
