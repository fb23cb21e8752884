"""Decode JSON the way LocalAI's peers do, so that whatever one of them sends is understood.

Names match without regard to case, unknown names are ignored, `null` means "not said", a `null` document is an
empty one, and a wrong type is an error that names the field.
"""

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from corral.base.errors import InvalidInput

StructT = TypeVar("StructT", bound=msgspec.Struct)

_WHERE = re.compile(r"^(?P<problem>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_decoder = msgspec.json.Decoder()


def decode(data: bytes, struct: type[StructT]) -> StructT:
    """Decode one document; InvalidInput names the field and the problem."""
    return convert(read_object(data), struct)


def read_object(data: bytes) -> dict[str, object]:
    """A JSON object, or an empty one for `null`; InvalidInput for anything else."""
    try:
        document = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput("", f"not valid JSON ({error})") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise InvalidInput("", f"expected a JSON object, got {_kind(document)}")
    return document


def convert(document: Mapping[str, object], struct: type[StructT]) -> StructT:
    """Fill a struct from an object that was already read."""
    try:
        return msgspec.convert(_known_names(document, struct), struct)
    except msgspec.ValidationError as error:
        raise _named(error) from error


def _known_names(document: Mapping[str, object], struct: type[msgspec.Struct]) -> dict[str, object]:
    exact = set(struct.__struct_encode_fields__)
    folded = {name.lower(): name for name in exact}
    found: dict[str, object] = {}
    for key, value in document.items():
        name = key if key in exact else folded.get(key.lower())
        if name is not None and value is not None:
            found[name] = value
    return found


def _named(error: msgspec.ValidationError) -> InvalidInput:
    match = _WHERE.match(str(error))
    if match is None:
        return InvalidInput("", str(error))
    path = (match["path"] or "").removeprefix("$").removeprefix(".")
    return InvalidInput(path, match["problem"][:1].lower() + match["problem"][1:])


def _kind(value: object) -> str:
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return kinds.get(type(value), type(value).__name__)
