"""What keywords of JSON schemas are to grammars: which constrain, what types they mean, how two merge. Pure."""

from typing import Any, Final

from corral.base.errors import InvalidInput

ONLY_CONSTRAINING: Final[dict[str, object]] = {
    "$dynamicRef": None,
    "$recursiveRef": None,
    "additionalItems": None,
    "contains": None,
    "dependencies": {},
    "dependentRequired": {},
    "dependentSchemas": {},
    "else": None,
    "if": None,
    "maxContains": None,
    "minContains": None,
    "multipleOf": None,
    "not": None,
    "patternProperties": {},
    "propertyNames": None,
    "then": None,
    "unevaluatedItems": None,
    "unevaluatedProperties": None,
    "uniqueItems": False,
}
"""Keywords that no grammar here expresses, with the values by which they say nothing."""

_KEYS_OF_TYPES: Final = {
    "object": ("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
_TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")

CONSTRAINTS: Final = frozenset(
    {
        "$ref",
        "allOf",
        "anyOf",
        "oneOf",
        "enum",
        "const",
        "type",
        *(key for keys in _KEYS_OF_TYPES.values() for key in keys),
    }
)
"""Keywords that a grammar expresses. All that are neither here nor above say nothing about what fits."""


def types_of(schema: dict[str, Any], place: str) -> list[str]:
    """Return the types that the schema allows. Without a type it is the one that the other keywords are about."""
    given = schema.get("type")
    if given is None:
        implied = (kind for kind, keys in _KEYS_OF_TYPES.items() if any(key in schema for key in keys))
        return [next(implied, "value")]
    types = given if isinstance(given, list) else [given]
    for kind in types:
        if kind not in _TYPES:
            raise InvalidInput(f"{place}.type", f"must be one of {', '.join(_TYPES)}")
    if not types:
        raise InvalidInput(f"{place}.type", "must name a type")
    return list(dict.fromkeys(types))


def type_of_value(value: object) -> set[str]:
    """Return the types that the value has; a whole number has two."""
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"number", "integer"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
    return {"object"}


def merge_schemas(one: dict[str, Any], other: dict[str, Any], place: str) -> dict[str, Any]:
    """Return a schema of what fits both. InvalidInput, with the keyword at the place of the other, if none does."""
    _check_closed(one, other, place)
    merged = dict(one)
    for key, value in other.items():
        merged[key] = _merged(key, merged[key], value, place) if key in merged and merged[key] != value else value
    return merged


def _check_closed(one: dict[str, Any], other: dict[str, Any], place: str) -> None:
    """What one says about other properties would also be about those that only the other names."""
    for closed, named in ((one, other), (other, one)):
        names, known = named.get("properties"), closed.get("properties", {})
        if closed.get("additionalProperties", True) is True or not isinstance(names, dict):
            continue
        if not isinstance(known, dict) or names.keys() - known.keys():
            raise InvalidInput(f"{place}.additionalProperties", "is not offered for properties that another part names")


def _merged(key: str, one: Any, other: Any, place: str) -> Any:
    """Return the value of a keyword that is given twice, and differs."""
    if key == "properties" and isinstance(one, dict) and isinstance(other, dict):
        both = {name: {"allOf": [one[name], other[name]]} for name in one.keys() & other.keys()}
        return one | other | both
    if key == "required" and isinstance(one, list) and isinstance(other, list):
        return [*one, *other]
    if key == "additionalProperties" and True in (one, other):
        return other if one is True else one
    if key == "type" and (types := _common_types(one, other)):
        return types
    if _is_number(one) and _is_number(other) and key not in ("const", "enum"):
        return max(one, other) if key.lower().startswith(("min", "exclusivemin")) else min(one, other)
    raise InvalidInput(f"{place}.{key}", "differs from what the same schema says elsewhere, and cannot be merged")


def _common_types(one: Any, other: Any) -> list[str]:
    ones, others = ([each] if isinstance(each, str) else each for each in (one, other))
    if not isinstance(ones, list) or not isinstance(others, list):
        return []
    common = [kind for kind in ones if kind in others]
    return common or (["integer"] if {"integer", "number"} <= {*map(str, ones), *map(str, others)} else [])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
