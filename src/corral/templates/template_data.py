"""What LocalAI gives to templates: the structs with their fields in order, made of plain values or of JSON."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from corral.base.errors import InvalidInput
from corral.templates.values import NilMap, NilSlice, NilStringMap, StringMap, StructValue

Json = object
Converter = Callable[[Json, str], object]
"""Makes a value of Go of one of JSON, or of none; the text says where it is, for InvalidInput."""


def text(value: Json, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidInput(where, "must be a text")
    return re.sub("[\ud800-\udfff]", "\ufffd", value)


def flag(value: Json, where: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise InvalidInput(where, "must be true or false")
    return bool(value)


def whole(value: Json, where: str) -> int:
    if value is None:
        return 0
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise InvalidInput(where, "must be a whole number")
    return value


def items(value: Json, where: str) -> list[Json]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidInput(where, "must be a list")
    return value


def mapping(value: Json, where: str) -> dict[str, Json]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(where, "must be an object")
    return value


def anything(value: Json, where: str) -> object:
    """Return JSON as Go decodes it without a type: all numbers are float64. It is a copy."""
    if isinstance(value, str):
        return text(value, where)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _float(value, where)
    if isinstance(value, list):
        return [anything(item, where) for item in value]
    if isinstance(value, dict):
        return {text(str(key), where): anything(item, where) for key, item in value.items()}
    return value


def _float(value: float, where: str) -> float:
    try:
        number = float(value)
    except OverflowError as error:
        raise InvalidInput(where, "a number is too large") from error
    if number - number != 0:
        raise InvalidInput(where, "must be a number that JSON has")
    return number


class Shape(msgspec.Struct, frozen=True):
    """One of LocalAI's structs: its name, and its fields in order."""

    name: str
    fields: Mapping[str, Converter]
    json_names: Mapping[str, str] = msgspec.field(default_factory=dict)
    left_out_when_empty: frozenset[str] = frozenset()

    def record(self, **values: object) -> StructValue:
        """Make a struct of values; fields without one are zero."""
        complete = {name: values[name] if name in values else zero(None, name) for name, zero in self.fields.items()}
        return StructValue(self.name, complete, self.json_names, self.left_out_when_empty)

    def from_json(self, document: Json, where: str) -> StructValue:
        """Make a struct of an object with its names in JSON; others are ignored, as LocalAI does."""
        members = mapping(document, where)
        names = {name: self.json_names.get(name, name) for name in self.fields}
        return self.record(
            **{
                name: convert(members[names[name]], f"{where}.{names[name]}")
                for name, convert in self.fields.items()
                if names[name] in members
            }
        )


def _parameters(value: Json, where: str) -> object:
    return NilMap() if value is None else anything(mapping(value, where), where)


def functions(value: Json, where: str) -> list[StructValue]:
    """Make the functions that templates see."""
    return [FUNCTION.from_json(item, f"{where}[{index}]") for index, item in enumerate(items(value, where))]


def _functions(value: Json, where: str) -> object:
    return NilSlice() if value is None else functions(value, where)


def metadata(value: Json, where: str) -> object:
    if value is None:
        return NilStringMap()
    return StringMap({text(key, where): text(item, f"{where}.{key}") for key, item in mapping(value, where).items()})


def tool_calls(value: Json, where: str) -> list[StructValue]:
    """Make calls of tools, of a message or for a template alone."""
    return [TOOL_CALL.from_json(item, f"{where}[{index}]") for index, item in enumerate(items(value, where))]


def _function_call(value: Json, where: str) -> object:
    return tool_calls(value, where) if isinstance(value, list) else anything(value, where)


def _called(value: Json, where: str) -> StructValue:
    return CALLED_FUNCTION.from_json(value, where)


def _media(value: Json, where: str) -> list[StructValue]:
    return [MEDIUM.from_json(item, f"{where}[{index}]") for index, item in enumerate(items(value, where))]


FUNCTION: Final = Shape(
    "functions.Function",
    {"Name": text, "Description": text, "Strict": flag, "Parameters": _parameters},
    {"Name": "name", "Description": "description", "Strict": "strict", "Parameters": "parameters"},
)
CALLED_FUNCTION: Final = Shape(
    "schema.FunctionCall",
    {"Name": text, "Arguments": text},
    {"Name": "name", "Arguments": "arguments"},
    frozenset(("name",)),
)
TOOL_CALL: Final = Shape(
    "schema.ToolCall",
    {"Index": whole, "ID": text, "Type": text, "FunctionCall": _called},
    {"Index": "index", "ID": "id", "Type": "type", "FunctionCall": "function"},
)
MEDIUM: Final = Shape("templates.MultimodalContent", {"ID": whole})
PROMPT: Final = Shape(
    "templates.PromptTemplateData",
    {
        "SystemPrompt": text,
        "SuppressSystemPrompt": flag,
        "Input": text,
        "Instruction": text,
        "Functions": _functions,
        "MessageIndex": whole,
        "ReasoningEffort": text,
        "Metadata": metadata,
    },
)
CHAT_MESSAGE: Final = Shape(
    "templates.ChatMessageTemplateData",
    {
        "SystemPrompt": text,
        "Role": text,
        "RoleName": text,
        "FunctionName": text,
        "Content": text,
        "MessageIndex": whole,
        "Function": flag,
        "FunctionCall": _function_call,
        "LastMessage": flag,
    },
)
MULTIMODAL: Final = Shape(
    "the data of a multimodal template", {"Audio": _media, "Images": _media, "Video": _media, "Text": text}
)
SHAPES: Final[Mapping[str, Shape]] = {
    "chat": PROMPT,
    "function": PROMPT,
    "completion": PROMPT,
    "edit": PROMPT,
    "chat_message": CHAT_MESSAGE,
    "multimodal": MULTIMODAL,
}
_MOST_MEDIA: Final = 10_000
_COUNTED: Final = {"Images": ("TotalImages", "ImagesInMessage"), "Audio": ("TotalAudios", "AudiosInMessage"),
                   "Video": ("TotalVideos", "VideosInMessage")}  # fmt: skip


def data_for(template: str, document: Mapping[str, Json]) -> StructValue:
    """Make the data of one template of an object with Go's field names. InvalidInput names an unknown or wrong one."""
    shape = SHAPES[template]
    fields = dict(document)
    if template == "multimodal":
        for name, (total, count_name) in _COUNTED.items():
            count = whole(fields.pop(count_name, None), count_name)
            after = whole(fields.pop(total, count), total)
            if not 0 <= count <= _MOST_MEDIA:
                raise InvalidInput(count_name, f"must be between 0 and {_MOST_MEDIA}")
            if count:
                fields[name] = [{"ID": number} for number in range(after - count, after)]
    unknown = [name for name in fields if name not in shape.fields]
    if unknown:
        raise InvalidInput(f"data.{unknown[0]}", f"the template {template} gets no such field")
    return shape.from_json(fields, "data")


def media(counts: Sequence[int], totals: Sequence[int], content: str) -> StructValue:
    """Make the data of a message with sounds, pictures and films, numbered through the whole conversation."""
    kinds = [
        [MEDIUM.record(ID=number) for number in range(total - count, total)]
        for count, total in zip(counts, totals, strict=True)
    ]
    return MULTIMODAL.record(Audio=kinds[0], Images=kinds[1], Video=kinds[2], Text=content)
