"""JSON the way LocalAI's peers read and write it, so that whatever one of them sends is understood.

Reading: names match without regard to case, at every depth; unknown names are ignored; `null` means "not said", unless
the field may be null; a `null` document is an empty one; a wrong type is an error that names the field.

Writing: a whole number has no fraction, also where it is one among fractions.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import TypeVar

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
        return msgspec.convert(_as_named(dict(document), _type_of(struct)), struct)
    except msgspec.ValidationError as error:
        raise _named(error) from error


@cache
def _type_of(struct: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(struct)


def _as_named(value: object, kind: inspect.Type) -> object:
    """The value with the names of its type. What does not fit the type is left for the conversion to complain of."""
    match kind, value:
        case inspect.StructType(), dict():
            return _object_as_named(value, kind)
        case _, None:
            return _NOTHING.get(type(kind))
        case inspect.ListType(item_type=inner), list():
            return [_as_named(item, inner) for item in value]
        case inspect.DictType(value_type=inner), dict():
            return {key: _as_named(item, inner) for key, item in value.items()}
        case inspect.UnionType(types=types), dict() | list():
            return next((_as_named(value, one) for one in types if _is_for(one, value)), value)
        case _:
            return value


def _object_as_named(document: Mapping[str, object], kind: inspect.StructType) -> dict[str, object]:
    fields = {field.encode_name: field for field in kind.fields}
    folded = {name.lower(): name for name in fields}
    found: dict[str, object] = {}
    for key, value in document.items():
        name = key if key in fields else folded.get(key.lower())
        if name is not None and (value is not None or _may_be_null(fields[name].type)):
            found[name] = _as_named(value, fields[name].type) if value is not None else None
    return found


def _may_be_null(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.NoneType) or (isinstance(kind, inspect.UnionType) and kind.includes_none)


def _is_for(kind: inspect.Type, value: object) -> bool:
    if isinstance(value, list):
        return isinstance(kind, inspect.ListType)
    return isinstance(kind, inspect.StructType | inspect.DictType)


def _with_whole_numbers(value: object) -> object:
    if isinstance(value, float) and value.is_integer() and abs(value) < _MOST_EXACT:
        return int(value)
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in value.items()}
    return [_with_whole_numbers(item) for item in value] if isinstance(value, list) else value


def _named(error: msgspec.ValidationError) -> InvalidInput:
    match = _WHERE.match(str(error))
    if match is None:
        return InvalidInput("", str(error))
    path = (match["path"] or "").removeprefix("$").removeprefix(".")
    return InvalidInput(path, match["problem"][:1].lower() + match["problem"][1:])


def _kind(value: object) -> str:
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return kinds.get(type(value), type(value).__name__)
