"""Reading single keys of a model's configuration. A value of the wrong type is refused by the name of its key.

Keys are dotted where they lie in a part. A default of MISSING tells a key that is not there from one that is empty.
"""

import json
import math
from collections.abc import Mapping
from types import UnionType
from typing import Any, Final

from corral.base.errors import InvalidInput

MISSING: Final = object()
_INT32: Final = 2**31

Config = Mapping[str, object]


def value_at(config: Config, key: str) -> object:
    """The value at a dotted key; None where there is nothing."""
    value: object = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _typed(config: Config, key: str, types: type | UnionType, expected: str) -> Any:
    """The value at a key, None where there is nothing. InvalidInput for another type; true and false are no numbers."""
    value = value_at(config, key)
    if value is not None and (not isinstance(value, types) or (isinstance(value, bool) and types is not bool)):
        raise InvalidInput(key, f"must be {expected}, got {kind(value)}")
    return value


def text(config: Config, key: str, default: object = "") -> str:
    value = _typed(config, key, str | int | float, "text")
    return default if value is None else _encodable(key, str(value))  # type: ignore[return-value]


def _encodable(key: str, value: str) -> str:
    """Refuse text with half of a surrogate pair, which YAML can contain and UTF-8 cannot."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(key, "contains half of a character (a lone surrogate)") from error
    return value


def whole(config: Config, key: str, default: object = MISSING) -> object:
    expected = "a whole number"
    value = _typed(config, key, int, expected)
    if value is not None and not -_INT32 <= value < _INT32:
        raise InvalidInput(key, f"must be {expected}, got {kind(value)}")
    return default if value is None else value


def number(config: Config, key: str, default: object = MISSING) -> object:
    value = _typed(config, key, int | float, "a number")
    if value is not None and not math.isfinite(value):
        raise InvalidInput(key, f"must be a finite number, got {value}")
    return default if value is None else float(value)


def switch(config: Config, key: str, default: object = MISSING) -> object:
    value = _typed(config, key, bool, "true or false")
    return default if value is None else value


def texts(config: Config, key: str, default: object = MISSING) -> object:
    values = _list_of(config, key, str, "texts")
    return default if values is None else [_encodable(key, value) for value in values]


def numbers(config: Config, key: str, default: object = MISSING) -> object:
    values = _list_of(config, key, int | float, "numbers")
    return default if values is None else [float(value) for value in values]


def _list_of(config: Config, key: str, types: type | UnionType, item_kind: str) -> list[Any] | None:
    value = value_at(config, key)
    if value is None or (isinstance(value, list) and all(isinstance(item, types) for item in value)):
        return value
    raise InvalidInput(key, f"must be a list of {item_kind}, got {kind(value)}")


def texts_by_name(config: Config, key: str, default: object = MISSING) -> object:
    value = value_at(config, key)
    if value is None:
        return default
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidInput(key, f"must be a mapping of names to texts, got {kind(value)}")
    for name, part in value.items():
        if not isinstance(part, str | int | float | None) or isinstance(part, bool):
            raise InvalidInput(f"{key}.{name}", f"must be text, got {kind(part)}")
    return {name: _encodable(f"{key}.{name}", str(part)) for name, part in value.items() if part is not None}


def mapping(config: Config, key: str, default: object = MISSING) -> object:
    value = value_at(config, key)
    if value is None:
        return default
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidInput(key, f"must be a mapping of names to values, got {kind(value)}")
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidInput(key, f"holds what JSON cannot say: {error}") from error
    return dict(value)


def listed(value: object) -> list[object]:
    """The items of a list; empty for any other value."""
    return value if isinstance(value, list) else []


def kind(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a mapping"}
    return names.get(type(value), type(value).__name__)
