"""Checks JSON against schemas, and makes values that fit: as much of JSON schema as grammars express."""

import random
import re
import string
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any
from uuid import UUID

_FORMATS = {"date": date.fromisoformat, "time": time.fromisoformat, "date-time": datetime.fromisoformat, "uuid": UUID}
"""What reads a text of a format. The others are told from texts by eye."""
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}


def fits(value: Any, schema: Any, root: Any) -> bool:
    """Whether the value fits. Limits of numbers count for integers alone, and `oneOf` is `anyOf`."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and not fits(value, _target(schema["$ref"], root), root):
        return False
    if not all(fits(value, each, root) for each in schema.get("allOf", ())):
        return False
    for key in ("anyOf", "oneOf"):
        if key in schema and not any(fits(value, each, root) for each in schema[key]):
            return False
    if "const" in schema and not _is_same(value, schema["const"]):
        return False
    if "enum" in schema and not any(_is_same(value, each) for each in schema["enum"]):
        return False
    return _has_type(value, schema.get("type")) and _fits_type(value, schema, root)


def _target(pointer: str, root: Any) -> Any:
    for key in pointer.split("/")[1:]:
        root = root[key]
    return root


def _is_same(one: Any, other: Any) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _has_type(value: Any, given: Any) -> bool:
    if given is None:
        return True
    kinds = given if isinstance(given, list) else [given]
    return any(isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool)) for kind in kinds)


def _fits_type(value: Any, schema: Any, root: Any) -> bool:
    if isinstance(value, dict):
        return _fits_object(value, schema, root)
    if isinstance(value, list):
        heads, rest = schema.get("prefixItems", []), schema.get("items", True)
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            return False
        return all(fits(each, heads[i] if i < len(heads) else rest, root) for i, each in enumerate(value))
    if isinstance(value, str):
        return _fits_text(value, schema)
    if isinstance(value, int) and not isinstance(value, bool):
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    return True


def _fits_object(value: dict[str, Any], schema: Any, root: Any) -> bool:
    properties, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
    return all(name in value for name in schema.get("required", ())) and all(
        fits(each, properties.get(name, rest), root) for name, each in value.items()
    )


def _fits_text(value: str, schema: Any) -> bool:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        return False
    if "format" in schema:
        _FORMATS.get(schema["format"], str)(value)
    return "pattern" not in schema or re.search(schema["pattern"], value) is not None


def example_of(schema: Any, root: Any, source: random.Random) -> Any:
    """Return a random value that fits, with its properties in the order in which the schema has them."""
    if schema is True or not schema:
        return source.choice([None, True, 1, "x", [1, "a"], {"b": {}}])
    if "$ref" in schema:
        return example_of(_target(schema["$ref"], root), root, source)
    if branches := schema.get("anyOf") or schema.get("oneOf"):
        return example_of(source.choice(branches), root, source)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return source.choice(schema["enum"])
    kind = schema["type"]
    return _example_of_type(source.choice(kind) if isinstance(kind, list) else kind, schema, root, source)


def _example_of_type(kind: str, schema: Any, root: Any, source: random.Random) -> Any:
    match kind:
        case "object":
            return _example_of_object(schema, root, source)
        case "array":
            least = schema.get("minItems", 0)
            count = source.randint(least, schema.get("maxItems", least + 2))
            return [example_of(schema.get("items", True), root, source) for _ in range(count)]
        case "string":
            least = schema.get("minLength", 0)
            count = source.randint(least, schema.get("maxLength", least + 5))
            return "".join(source.choices(string.printable[:-5] + 'é€😀"\\\n', k=count))
        case "integer":
            return source.randint(schema.get("minimum", -(10**6)), schema.get("maximum", 10**6))
        case "number":
            return source.choice([0, -1.5, 2e20, 1e-7, 12345.678])
        case "boolean":
            return source.choice([True, False])
    return None


def _example_of_object(schema: Any, root: Any, source: random.Random) -> Any:
    required = schema.get("required", ())
    value = {
        name: example_of(each, root, source)
        for name, each in schema.get("properties", {}).items()
        if name in required or source.random() < 0.5
    }
    if schema.get("additionalProperties", False) is not False and source.random() < 0.5:
        value["another name"] = example_of(schema["additionalProperties"], root, source)
    return value
