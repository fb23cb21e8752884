"""Reading single keys of a model's configuration. A value of the wrong type is refused by the name of its key.

Keys are dotted where they lie in a part. A default of MISSING tells a key that is not there from one that is empty.
"""

import json
import math
from collections.abc import Mapping
from typing import Final

from corral.base.errors import InvalidInput

MISSING: Final = object()
_INT32: Final = 2**31

Config = Mapping[str, object]


def found(config: Config, key: str) -> object:
    """What stands at a dotted key; None where there is nothing."""
    value: object = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def text(config: Config, key: str, default: object = "") -> str:
    value = found(config, key)
    if value is None:
        return default  # type: ignore[return-value]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidInput(key, f"must be text, got {kind(value)}")
    return _encodable(key, str(value))


def _encodable(key: str, value: str) -> str:
    """YAML can spell half of a character, which nothing can send on."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(key, "contains half of a character (a lone surrogate)") from error
    return value


def whole(config: Config, key: str, default: object = MISSING) -> object:
    value = found(config, key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not -_INT32 <= value < _INT32:
        raise InvalidInput(key, f"must be a whole number, got {kind(value)}")
    return value


def number(config: Config, key: str, default: object = MISSING) -> object:
    value = found(config, key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(key, f"must be a number, got {kind(value)}")
    if not math.isfinite(value):
        raise InvalidInput(key, f"must be a finite number, got {value}")
    return float(value)


def switch(config: Config, key: str, default: object = MISSING) -> object:
    value = found(config, key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidInput(key, f"must be true or false, got {kind(value)}")
    return value


def texts(config: Config, key: str, default: object = MISSING) -> object:
    value = found(config, key)
    if value is None:
        return default
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InvalidInput(key, f"must be a list of texts, got {kind(value)}")
    return [_encodable(key, one) for one in value]


def numbers(config: Config, key: str, default: object = MISSING) -> object:
    value = found(config, key)
    if value is None:
        return default
    if not isinstance(value, list) or not all(isinstance(one, int | float) for one in value):
        raise InvalidInput(key, f"must be a list of numbers, got {kind(value)}")
    return [float(one) for one in value]


def mapping(config: Config, key: str, default: object = MISSING) -> object:
    value = found(config, key)
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
    """Nothing, where it is no list."""
    return value if isinstance(value, list) else []


def kind(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a mapping"}
    return names.get(type(value), type(value).__name__)
