"""Writes a grammar for llama.cpp from a JSON schema: what a model may write is JSON that fits the schema. Pure.

The grammar may allow less than the schema, never something else, with two exceptions: `oneOf` is read as `anyOf`, and
of the limits of numbers that are no integers only the sign is kept. A schema that cannot be expressed is refused by the
place of the keyword. Schemas come from strangers, so the size of everything is limited.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import unquote

import msgspec

from corral.adapter.dialects.gbnf import (
    FORMATS,
    JSON_RULES,
    LARGEST_INTEGER,
    integers,
    json_literal,
    literal,
    repetition,
)
from corral.adapter.dialects.gbnf_patterns import PatternNotOffered, pattern_text
from corral.adapter.dialects.json_schemas import (
    CONSTRAINTS,
    ONLY_CONSTRAINING,
    merge_schemas,
    type_of_value,
    types_of,
)
from corral.base.errors import InvalidInput

ANY_OBJECT: Final = "object"
"""The schema's word, and the rule's name."""

_DEEPEST: Final = 64
_MOST_SCHEMAS: Final = 5000
"""How many schemas are read, where one that is used twice may count twice."""
_MOST_BYTES: Final = 128 * 1024
_MOST_CHARACTERS: Final = 256 * 1024
_MOST_REPETITIONS: Final = 2000
"""llama.cpp's own limit of one repetition. Each counts there like a rule, so the sum is limited as well."""
_MOST_REPETITIONS_IN_ALL: Final = 10_000
_LONGEST_NAME: Final = 100
"""The longest name of a property in an object that may have others: the grammar spells out how they differ."""
_NAME_CHARACTER: Final = r"[^\"\\\x00-\x1F\x7F{}]"
_IGNORED_FORMATS: Final = ("password", "binary", "byte")
_PLAIN: Final = {"string": "string", "number": "number", "integer": "integer", "boolean": "boolean", "null": "null"}


class _Spot(NamedTuple):
    """Where a schema is."""

    place: str
    depth: int = 0
    begins: bool = True
    """Whether the text of the rule that is being written may begin with this schema's text."""

    def at(self, key: str) -> "_Spot":
        return _Spot(f"{self.place}.{key}", self.depth + 1, self.begins)

    def inside(self, key: str) -> "_Spot":
        """Behind a bracket, at least."""
        return _Spot(f"{self.place}.{key}", self.depth + 1, False)

    def refuse(self, problem: str, key: str = "") -> NoReturn:
        raise InvalidInput(f"{self.place}.{key}" if key else self.place, problem)


def any_object_grammar() -> str:
    """Return a grammar of all JSON objects."""
    return _written({"root": ANY_OBJECT})


def json_grammar(schema: object, place: str) -> str:
    """Return a grammar of the JSON that fits the schema. InvalidInput names the keyword that has no grammar."""
    return _Writer(schema, place).grammar()


def _written(rules: dict[str, str]) -> str:
    return "".join(f"{name} ::= {body}\n" for name, body in (rules | JSON_RULES).items())


class _Writer:
    """Collects the rules for one schema."""

    def __init__(self, schema: object, place: str) -> None:
        self._schema, self._top = schema, _Spot(place)
        self._bodies: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._targets: dict[str, str] = {}
        self._begins_with: dict[str, set[str]] = {}
        self._waiting: deque[str] = deque()
        self._target = ""
        self._schemas = self._characters = self._repetitions = 0

    def grammar(self) -> str:
        try:
            size = len(msgspec.json.encode(self._schema))
        except RecursionError:
            self._top.refuse(f"is nested more than {_DEEPEST} times")
        if size > _MOST_BYTES:
            self._top.refuse(f"is larger than {_MOST_BYTES} bytes")
        self._rule_of_target("#", "root")
        while self._waiting:
            self._target = self._waiting.popleft()
            schema, spot = self._resolved(self._target, self._top)
            self._bodies[self._targets[self._target]] = self._text(schema, spot)
        self._check_ends()
        return _written(self._bodies)

    def _check_ends(self) -> None:
        """Refuse references that lead back to themselves with nothing between."""
        done: set[str] = set()
        while ready := [
            target for target, others in self._begins_with.items() if others <= done and target not in done
        ]:
            done.update(ready)
        target = next((target for target in self._begins_with if target not in done), None)
        passed: set[str] = set()
        while target is not None:  # to the circle, which other references may lead to
            if target in passed:
                self._resolved(target, self._top)[1].refuse("refers to itself with nothing between")
            passed.add(target)
            target = next(other for other in self._begins_with[target] if other not in done)

    # Limits.

    def _count_schema(self, spot: _Spot) -> None:
        self._schemas += 1
        if self._schemas > _MOST_SCHEMAS:
            self._top.refuse("is too large for a grammar")
        if spot.depth > _DEEPEST:
            self._top.refuse(f"is nested more than {_DEEPEST} times")

    def _repeated(self, least: int, most: int | None) -> str:
        count = least if most is None else most
        self._repetitions += count
        if count > _MOST_REPETITIONS:
            self._top.refuse(f"repeats something more than {_MOST_REPETITIONS} times, which no grammar here does")
        if self._repetitions > _MOST_REPETITIONS_IN_ALL:
            self._top.refuse("repeats too much for a grammar")
        return repetition(least, most)

    def _rule(self, body: str) -> str:
        """Return the name of the rule with this body."""
        name = self._names.setdefault(body, f"r{len(self._names)}")
        if name not in self._bodies:
            self._bodies[name] = body
            self._characters += len(body)
            if self._characters > _MOST_CHARACTERS:
                self._top.refuse("is too large for a grammar")
        return name

    def _any_of(self, texts: Sequence[str]) -> str:
        different = list(dict.fromkeys(texts))
        return different[0] if len(different) == 1 else self._rule(" | ".join(different))

    # References.

    def _rule_of_target(self, pointer: str, name: str) -> str:
        if pointer not in self._targets:
            self._targets[pointer] = name
            self._begins_with[pointer] = set()
            self._waiting.append(pointer)
        return self._targets[pointer]

    def _reference(self, pointer: object, spot: _Spot) -> str:
        if not isinstance(pointer, str):
            spot.refuse("must be a text", "$ref")
        self._resolved(pointer, spot)
        if spot.begins:
            self._begins_with[self._target].add(pointer)
        return self._rule_of_target(pointer, f"ref{len(self._targets)}")

    def _resolved(self, pointer: object, spot: _Spot) -> tuple[object, _Spot]:
        """Return what a `$ref` at this spot means."""
        if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
            spot.refuse("must refer to a place in this schema, such as #/$defs/name", "$ref")
        schema, place = self._schema, self._top.place
        for step in pointer.split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if not isinstance(schema, dict) or key not in schema:
                spot.refuse(f"refers to {pointer[:200]}, which is not there", "$ref")
            schema, place = schema[key], f"{place}.{key}"
        return schema, _Spot(place)

    def _flat(self, schema: dict[str, Any], spot: _Spot) -> dict[str, Any]:
        """Return one schema that says what this one says together with its `allOf` and `$ref`."""
        self._count_schema(spot)
        for key in ONLY_CONSTRAINING:
            if schema.get(key, ONLY_CONSTRAINING[key]) != ONLY_CONSTRAINING[key]:
                spot.refuse("is not offered for an answer's form", key)
        merged = {key: value for key, value in schema.items() if key in CONSTRAINTS and key not in ("$ref", "allOf")}
        others: list[tuple[object, _Spot]] = []
        if "$ref" in schema:
            target, _ = self._resolved(schema["$ref"], spot)
            others.append((target, spot.at("$ref")))
        for index, each in enumerate(_items(schema, "allOf", spot) if "allOf" in schema else ()):
            others.append((each, spot.at(f"allOf[{index}]")))
        for other, place in others:
            if not isinstance(other, dict):
                if other is not True:
                    place.refuse("must be a schema that allows something")
                continue
            merged = merge_schemas(merged, self._flat(other, place), place.place)
        return merged

    # Schemas.

    def _text(self, schema: object, spot: _Spot) -> str:
        """Return a short expression: the name of a rule, or what needs no brackets in a row of others."""
        self._count_schema(spot)
        if schema is True:
            return "value"
        if schema is False:
            spot.refuse("allows nothing")
        if not isinstance(schema, dict):
            spot.refuse("must be a schema")
        given = CONSTRAINTS & schema.keys()
        if given == {"$ref"} and not ONLY_CONSTRAINING.keys() & schema.keys():
            return self._reference(schema["$ref"], spot)
        return self._constrained(self._flat(schema, spot), spot)

    def _constrained(self, schema: dict[str, Any], spot: _Spot) -> str:
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._branches(schema, key, spot)
        if "enum" in schema or "const" in schema:
            return self._values(schema, spot)
        return self._any_of([self._of_type(kind, schema, spot) for kind in types_of(schema, spot.place)])

    def _branches(self, schema: dict[str, Any], key: str, spot: _Spot) -> str:
        beside = {other: value for other, value in schema.items() if other != key}
        texts = []
        for index, branch in enumerate(_items(schema, key, spot)):
            place = spot.at(f"{key}[{index}]")
            if not beside:
                texts.append(self._text(branch, place))
            elif isinstance(branch, dict):
                texts.append(self._constrained(merge_schemas(beside, self._flat(branch, place), place.place), place))
            else:
                place.refuse("must be an object beside other keywords")
        return self._any_of(texts)

    def _values(self, schema: dict[str, Any], spot: _Spot) -> str:
        values = [schema["const"]] if "const" in schema else _items(schema, "enum", spot)
        if "const" in schema and "enum" in schema:
            spot.refuse("is not offered together with const", "enum")
        if beside := sorted(schema.keys() - {"const", "enum", "type"}):
            spot.refuse("is not offered together with enum or const", beside[0])
        if "type" in schema:
            kinds = types_of(schema, spot.place)
            values = [value for value in values if type_of_value(value) & set(kinds)]
        if not values:
            spot.refuse("has no value of the type", "enum" if "enum" in schema else "const")
        return self._any_of([json_literal(value) for value in values])

    def _of_type(self, kind: str, schema: dict[str, Any], spot: _Spot) -> str:
        match kind:
            case "object":
                return self._object(schema, spot)
            case "array":
                return self._array(schema, spot)
            case "string":
                return self._string(schema, spot)
            case "integer":
                return self._integer(schema, spot)
            case "number":
                return self._number(schema, spot)
        return _PLAIN.get(kind, "value")

    # Objects.

    def _object(self, schema: dict[str, Any], spot: _Spot) -> str:
        properties = dict(_mapping(schema, "properties", spot))
        required = _texts(schema, "required", spot)
        others = schema.get("additionalProperties", not properties and not required)
        for name in required:
            if name not in properties:
                if schema.get("additionalProperties") is False:
                    spot.refuse(f"has {name[:100]}, which is no property", "required")
                properties[name] = others or True
        self._check_count_of_properties(schema, spot, least=len(required), most=math.inf if others else len(properties))
        if others is True and not properties:
            return "object"
        members = [
            self._rule(f'{json_literal(name)} ":" space {self._text(each, spot.inside(f"properties.{name}"))}')
            for name, each in properties.items()
        ]
        other = ""
        if others is not False:
            value = self._text(others, spot.inside("additionalProperties"))
            other = self._rule(f'{self._other_name(list(properties), spot)} ":" space {value}')
        demanded = set(required)
        return self._members(members, [name in demanded for name in properties], other)

    def _check_count_of_properties(self, schema: dict[str, Any], spot: _Spot, *, least: int, most: float) -> None:
        if (_count(schema, "minProperties", spot) or 0) > least:
            spot.refuse("is not offered beyond the number of required properties", "minProperties")
        limit = _count(schema, "maxProperties", spot)
        if limit is not None and limit < most:
            spot.refuse("is not offered below the number of properties that may be there", "maxProperties")

    def _members(self, members: Sequence[str], required: Sequence[bool], other: str) -> str:
        """Return an object with these members in this order, and any number of the other behind them."""
        behind = f"(comma {other})*" if other else ""
        first = [f"{other} {behind}"] if other else []
        for member, is_required in zip(reversed(members), reversed(required), strict=True):
            here = f"{member} {behind}".strip()
            first = [here] if is_required else [here, *first]
            row = f"comma {member}" if is_required else f"(comma {member})?"
            behind = self._rule(f"{row} {behind}".strip())
        if not first:
            return self._rule('"{" space "}"')
        row = f"({' | '.join(first)}) space"
        return self._rule(f'"{{" space {row} "}}"' if any(required) else f'"{{" space ({row})? "}}"')

    def _other_name(self, names: Sequence[str], spot: _Spot) -> str:
        """Return a name, without escapes, that is none of these."""
        longest = max(map(len, names), default=0)
        if longest > _LONGEST_NAME:
            spot.refuse("is not offered beside a property with so long a name", "additionalProperties")
        return self._rule(f'"\\"" ({self._other_text(names)}) "\\""')

    def _other_text(self, names: Sequence[str]) -> str:
        """Return what matches all texts but these, which begin where the names' common part has ended."""
        if not names:
            return f"{_NAME_CHARACTER.format('')}*"
        plain: dict[str, list[str]] = {}
        for name in filter(None, names):
            if name[0].isprintable() and name[0] not in '"\\':
                plain.setdefault(name[0], []).append(name[1:])
        texts = [f"{literal(first)} {self._rule(self._other_text(rest))}" for first, rest in plain.items()]
        excluded = "".join(f"\\x{ord(first):02X}" if first in "[]^-" else first for first in plain)
        texts.append(f"{_NAME_CHARACTER.format(excluded)} {_NAME_CHARACTER.format('')}*")
        return " | ".join(texts if "" in names else ['""', *texts])

    # Arrays.

    def _array(self, schema: dict[str, Any], spot: _Spot) -> str:
        least, most = _limits(schema, "minItems", "maxItems", spot)
        heads = _items(schema, "prefixItems", spot) if "prefixItems" in schema else []
        rest = schema.get("items", not heads or least > len(heads))
        if most is not None:
            heads = heads[:most]
        first = [self._text(each, spot.inside(f"prefixItems[{index}]")) for index, each in enumerate(heads)]
        if rest is False or (most is not None and most <= len(heads)):
            if least > len(heads):
                spot.refuse("is more than there may be", "minItems")
            return self._row(first, least, "")
        item = self._text(rest, spot.inside("items"))
        if not first:
            first = [item]
        more = self._more(item, max(0, least - len(first)), None if most is None else most - len(first))
        return self._row(first, least, more)

    def _more(self, item: str, least: int, most: int | None) -> str:
        return "" if most == 0 else f"(comma {item}){self._repeated(least, most)}"

    def _row(self, first: Sequence[str], least: int, more: str) -> str:
        """Return an array with at least that many of the first items, and more behind them."""
        if not first:
            return self._rule('"[" space "]"')
        behind = more
        for index in range(len(first) - 1, 0, -1):
            row = self._rule(f"comma {first[index]} {behind}".strip())
            behind = row if index < least else f"{row}?"
        inside = f"{first[0]} {behind} space"
        return self._rule(f'"[" space {inside} "]"' if least else f'"[" space ({inside})? "]"')

    # Texts and numbers.

    def _string(self, schema: dict[str, Any], spot: _Spot) -> str:
        least, most = _limits(schema, "minLength", "maxLength", spot)
        has_limits = least > 0 or most is not None
        form = schema.get("format")
        if form in _IGNORED_FORMATS:
            form = None
        for key, is_given in (("format", form is not None), ("pattern", "pattern" in schema)):
            if is_given and (has_limits or (key == "format" and "pattern" in schema)):
                spot.refuse("is not offered together with other limits of a text", key)
        if form is not None:
            if not isinstance(form, str) or form not in FORMATS:
                spot.refuse(f"{str(form)[:100]} is not offered, only {', '.join(FORMATS)}", "format")
            return self._quoted(FORMATS[form])
        if "pattern" in schema:
            return self._quoted(self._pattern(schema["pattern"], spot))
        return self._quoted(f"character{self._repeated(least, most)}") if has_limits else "string"

    def _pattern(self, pattern: object, spot: _Spot) -> str:
        if not isinstance(pattern, str):
            spot.refuse("must be a text", "pattern")
        try:
            return pattern_text(pattern, self._repeated)
        except PatternNotOffered as error:
            spot.refuse(str(error), "pattern")

    def _quoted(self, text: str) -> str:
        return self._rule(f'"\\"" {text} "\\""')

    def _integer(self, schema: dict[str, Any], spot: _Spot) -> str:
        lows = [math.ceil(value) for value in _numbers(schema, ("minimum",), spot)]
        lows += [math.floor(value) + 1 for value in _numbers(schema, ("exclusiveMinimum",), spot)]
        highs = [math.floor(value) for value in _numbers(schema, ("maximum",), spot)]
        highs += [math.ceil(value) - 1 for value in _numbers(schema, ("exclusiveMaximum",), spot)]
        if not lows and not highs:
            return "integer"
        low, high = max(-LARGEST_INTEGER, *lows, -LARGEST_INTEGER), min(LARGEST_INTEGER, *highs, LARGEST_INTEGER)
        if low > high:
            spot.refuse("has limits with no integer between them that is offered")
        return self._any_of(integers(low, high))

    def _number(self, schema: dict[str, Any], spot: _Spot) -> str:
        _numbers(schema, ("maximum", "exclusiveMaximum"), spot)
        lows = _numbers(schema, ("minimum", "exclusiveMinimum"), spot)
        return self._rule("digits fraction") if lows and max(lows) >= 0 else "number"


# Values of keywords.


def _items(schema: dict[str, Any], key: str, spot: _Spot) -> list[Any]:
    value = schema[key]
    if not isinstance(value, list) or not value:
        spot.refuse("must be a list with something in it", key)
    return value


def _mapping(schema: dict[str, Any], key: str, spot: _Spot) -> dict[str, Any]:
    value = schema.get(key, {})
    if not isinstance(value, dict):
        spot.refuse("must be an object", key)
    return value


def _texts(schema: dict[str, Any], key: str, spot: _Spot) -> list[str]:
    value = schema.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        spot.refuse("must be a list of texts", key)
    return list(dict.fromkeys(value))


def _count(schema: dict[str, Any], key: str, spot: _Spot) -> int | None:
    value = schema.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        spot.refuse("must be a whole number that is not negative", key)
    return value


def _limits(schema: dict[str, Any], least_key: str, most_key: str, spot: _Spot) -> tuple[int, int | None]:
    least, most = _count(schema, least_key, spot) or 0, _count(schema, most_key, spot)
    if most is not None and most < least:
        spot.refuse(f"must not be below {least_key}", most_key)
    for key, value in ((least_key, least), (most_key, most or 0)):
        if value > _MOST_REPETITIONS:
            spot.refuse(f"must be at most {_MOST_REPETITIONS} for a grammar", key)
    return least, most


def _numbers(schema: dict[str, Any], keys: Sequence[str], spot: _Spot) -> list[float]:
    values = []
    for key in keys:
        value = schema.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            spot.refuse("must be a number", key)
        values.append(value)
    return values


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number that is larger than any float
        return False
