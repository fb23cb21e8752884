"""JSON as LocalAI's peers read and write it, times included."""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from types import UnionType
from typing import Final, TypeVar

import msgspec
from msgspec import inspect

from corral.base.errors import InvalidInput
from corral.base.unreadable_json import UNREADABLE_JSON

StructT = TypeVar("StructT", bound=msgspec.Struct)

_WHERE = re.compile(r"^(?P<problem>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_MOST_EXACT = 2**53
_NOTHING: Mapping[type[inspect.Type], object] = {
    inspect.StructType: {},
    inspect.StrType: "",
    inspect.IntType: 0,
    inspect.FloatType: 0.0,
    inspect.BoolType: False,
}
"""What a `null` among others means, in a list or a map."""
_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


def decode(data: bytes, struct: type[StructT]) -> StructT:
    """Decode one document; InvalidInput names the field and the problem."""
    return convert(read_object(data), struct)


def decode_list(data: bytes, struct: type[StructT]) -> list[StructT]:
    """Decode a list of objects, empty for `null`; InvalidInput names the field and the problem."""
    document = _read(data)
    if document is None:
        return []
    if not isinstance(document, list):
        raise InvalidInput("", f"expected a JSON list, got {_kind(document)}")
    return [convert(_object(item), struct) for item in document]


def encode(message: msgspec.Struct) -> bytes:
    return _encoder.encode(_with_whole_numbers(msgspec.to_builtins(message)))


def read_object(data: bytes) -> dict[str, object]:
    """A JSON object, or an empty one for `null`; InvalidInput for anything else."""
    return _object(_read(data))


def _read(data: bytes) -> object:
    try:
        return _decoder.decode(data)
    except UNREADABLE_JSON as error:
        raise InvalidInput("", f"not valid JSON ({error})") from error


def _object(document: object) -> dict[str, object]:
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise InvalidInput("", f"expected a JSON object, got {_kind(document)}")
    return document


def convert(document: Mapping[str, object], struct: type[StructT]) -> StructT:
    """Fill a struct from an object that was already read."""
    try:
        return msgspec.convert(_object_as_named(document, struct), struct)
    except msgspec.ValidationError as error:
        match = _WHERE.match(str(error))
        if match is None:
            raise InvalidInput("", str(error)) from error
        path = (match["path"] or "").removeprefix("$").removeprefix(".")
        raise InvalidInput(path, match["problem"][:1].lower() + match["problem"][1:]) from error


def _object_as_named(document: Mapping[str, object], struct: type[msgspec.Struct]) -> dict[str, object]:
    """The object with the names of the struct. What does not fit is left for the conversion to complain of."""
    fields, folded = _fields_of(struct)
    named: dict[str, object] = {}
    for key, value in document.items():
        field = fields.get(key) or folded.get(key.lower())
        if field is None:
            continue
        if value is None:
            if field.may_be_null:
                named[field.name] = None
        else:
            named[field.name] = value if field.as_named is None else field.as_named(value)
    return named


class _Field(msgspec.Struct, frozen=True):
    name: str
    may_be_null: bool
    as_named: "_AsNamed | None"


_AsNamed = Callable[[object], object]
"""Gives names of structs to what is inside a value, which is not null. None where nothing can be inside."""


@cache
def _fields_of(struct: type[msgspec.Struct]) -> tuple[dict[str, _Field], dict[str, _Field]]:
    """The fields of a struct by their names, and by their names without regard to case."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)  # noqa: S101 - for the type checker
    fields = []
    for struct_field in info.fields:
        is_optional = isinstance(struct_field.type, inspect.UnionType) and struct_field.type.includes_none
        may_be_null = is_optional or isinstance(struct_field.type, inspect.NoneType)
        fields.append(_Field(struct_field.encode_name, may_be_null, _as_named_by(struct_field.type)))
    return {field.name: field for field in fields}, {field.name.lower(): field for field in fields}


def _as_named_by(kind: inspect.Type) -> _AsNamed | None:
    match kind:
        case inspect.StructType(cls=struct):
            return lambda value: _object_as_named(value, struct) if isinstance(value, dict) else value
        case inspect.ListType(item_type=inner):
            item = _item_as_named_by(inner)
            return lambda value: [item(element) for element in value] if isinstance(value, list) else value
        case inspect.DictType(value_type=inner):
            item = _item_as_named_by(inner)
            return lambda value: (
                {key: item(element) for key, element in value.items()} if isinstance(value, dict) else value
            )
        case inspect.UnionType(types=types):
            of_list = _first_of(types, inspect.ListType)
            of_dict = _first_of(types, inspect.StructType | inspect.DictType)
            return lambda value: _with_first(of_list if isinstance(value, list) else of_dict, value)
    return None


def _item_as_named_by(kind: inspect.Type) -> _AsNamed:
    nothing, as_named = _NOTHING.get(type(kind)), _as_named_by(kind)
    if as_named is None:
        return lambda item: nothing if item is None else item
    return lambda item: nothing if item is None else as_named(item)


def _first_of(types: Iterable[inspect.Type], option_type: type | UnionType) -> _AsNamed | None:
    return next((_as_named_by(option) for option in types if isinstance(option, option_type)), None)


def _with_first(as_named: _AsNamed | None, value: object) -> object:
    return value if as_named is None else as_named(value)


def _with_whole_numbers(value: object) -> object:
    if isinstance(value, float) and value.is_integer() and abs(value) < _MOST_EXACT:
        return int(value)
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in value.items()}
    return [_with_whole_numbers(item) for item in value] if isinstance(value, list) else value


def _kind(value: object) -> str:
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return kinds.get(type(value), type(value).__name__)


ZERO: Final = "0001-01-01T00:00:00Z"
"""What Go sends for a time that was never set."""


def format_time(time: datetime) -> str:
    moment = time.astimezone(UTC)
    text = moment.strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    fraction = f"{moment.microsecond:06d}".rstrip("0")
    return f"{text}.{fraction}Z" if fraction else f"{text}Z"


def parse_time(text: str) -> datetime:
    """Read any RFC 3339 time; digits beyond microseconds are cut off. ValueError when the text is no such time."""
    cleaned = text.strip()
    head, dot, tail = cleaned.partition(".")
    if dot:
        digits = tail[: len(tail) - len(tail.lstrip("0123456789"))]
        cleaned = f"{head}.{digits[:6].ljust(6, '0')}{tail[len(digits) :]}"
    moment = datetime.fromisoformat(cleaned)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone")
    return moment.astimezone(UTC)
