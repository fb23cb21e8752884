"""Grammars of JSON schemas: what they let a model write fits the schema, and what fits may be written."""

import json
import random
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.adapter.dialects.json_grammar import any_object_grammar, json_grammar
from corral.base.errors import InvalidInput
from tests.kit.gbnf import Grammar, read_grammar
from tests.kit.json_schemas import example_of, fits

SEEDS = st.integers(0, 2**32)
NAMES = st.sampled_from(["a", "ab", "abc", "b", 'q"', "k\\", "é", "-^]", "a name", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.sampled_from(["", "x", 'a "b"', "\\\n", "€"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)


def integers() -> st.SearchStrategy[Any]:
    bounds = st.tuples(st.integers(-(10**5), 10**5), st.integers(-(10**5), 10**5)).map(sorted)
    both = bounds.map(lambda pair: {"type": "integer", "minimum": pair[0], "maximum": pair[1]})
    return both | st.integers(-500, 500).map(lambda low: {"type": "integer", "minimum": low})


def texts() -> st.SearchStrategy[Any]:
    limits = st.tuples(st.integers(0, 6), st.integers(0, 6)).map(sorted)
    both = limits.map(lambda pair: {"type": "string", "minLength": pair[0], "maxLength": pair[1]})
    return both | st.integers(0, 4).map(lambda least: {"type": "string", "minLength": least})


@st.composite
def objects(draw: Any, inner: st.SearchStrategy[Any]) -> Any:
    properties = draw(st.dictionaries(NAMES, inner, max_size=4))
    required = [name for name in properties if draw(st.booleans())]
    schema = {"type": "object", "properties": properties, "required": required}
    others = draw(st.none() | st.booleans() | inner)
    return schema if others is None else schema | {"additionalProperties": others}


@st.composite
def arrays(draw: Any, inner: st.SearchStrategy[Any]) -> Any:
    schema: dict[str, Any] = {"type": "array", "items": draw(inner)}
    if draw(st.booleans()):
        schema["minItems"] = draw(st.integers(0, 3))
    if draw(st.booleans()):
        schema["maxItems"] = schema.get("minItems", 0) + draw(st.integers(0, 3))
    return schema


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    branches = st.lists(inner, min_size=1, max_size=3)
    return objects(inner) | arrays(inner) | branches.map(lambda each: {"anyOf": each})


LEAVES = (
    st.sampled_from([True, {}, *({"type": kind} for kind in ("boolean", "null", "number", "integer", "string"))])
    | st.just({"type": ["string", "null"]})
    | st.lists(VALUES, min_size=1, max_size=4).map(lambda values: {"enum": values})
    | VALUES.map(lambda value: {"const": value})
    | integers()
    | texts()
)
SCHEMAS = st.recursive(LEAVES, nested, max_leaves=6)


def grammar_of(schema: Any) -> Grammar:
    return read_grammar(json_grammar(schema, "schema"))


def check_samples(schema: Any, *seeds: int) -> None:
    grammar = grammar_of(schema)
    for seed in seeds:
        text = grammar.sample(random.Random(seed))
        assert grammar.matches(text), text
        assert fits(json.loads(text), schema, schema), text


@given(schema=SCHEMAS, seed=SEEDS)
def test_what_it_lets_a_model_write_fits(schema: Any, seed: int) -> None:
    check_samples(schema, seed, seed + 1, seed + 2)


@given(schema=SCHEMAS, seed=SEEDS)
def test_what_fits_may_be_written_in_the_usual_forms(schema: Any, seed: int) -> None:
    grammar, value = grammar_of(schema), example_of(schema, schema, random.Random(seed))
    assert grammar.matches(json.dumps(value, ensure_ascii=False)), value
    if "enum" not in str(schema) and "const" not in str(schema):
        assert grammar.matches(json.dumps(value, separators=(",", ":"), ensure_ascii=False)), value
        assert grammar.matches(json.dumps(value, indent=2, ensure_ascii=False)), value


PERSON = {
    "type": "object",
    "title": "Person",
    "properties": {
        "name": {"type": "string", "description": "in full"},
        "age": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 151},
        "boss": {"anyOf": [{"$ref": "#/$defs/Boss"}, {"type": "null"}], "default": None},
        "born": {"type": "string", "format": "date"},
    },
    "required": ["name", "age"],
    "$defs": {"Boss": {"properties": {"under": {"type": "array", "items": {"$ref": "#"}}}, "required": ["under"]}},
}
PET = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}},
            "required": ["kind"],
        },
        {
            "type": "object",
            "properties": {"kind": {"const": "dog"}},
            "required": ["kind"],
            "additionalProperties": False,
        },
    ]
}
BOTH = {
    "allOf": [{"$ref": "#/definitions/named"}, {"properties": {"b": {"maximum": 9}}, "required": ["b"]}],
    "properties": {"b": {"type": "integer", "minimum": 7}},
    "definitions": {"named": {"type": "object", "properties": {"a": {"enum": [1, "x"]}}, "required": ["a"]}},
}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            PERSON,
            ['{"name": "A", "age": 150}'],
            ['{"name": "A"}', '{"name": "A", "age": 0}', '{"age": 1, "name": "A"}'],
        ),
        (PERSON, ['{"name":"A","age":1,"boss":{"under":[{"name":"B","age":2}]}}'], ['{"name": "A", "age": 1, "x": 1}']),
        (PERSON, ['{"name": "A", "age": 1, "born": "2024-02-29"}'], ['{"name": "A", "age": 1, "born": "2023-02-29"}']),
        (PET, ['{"kind": "cat", "lives": 9}', '{"kind": "dog"}'], ['{"kind": "dog", "lives": 9}', '{"kind": "cow"}']),
        (BOTH, ['{"b": 8, "a": "x"}', '{"b": 9, "a": 1}'], ['{"b": 6, "a": 1}', '{"b": 8}', '{"a": 1}']),
        ({"properties": {"a": True}, "additionalProperties": {"type": "null"}}, ['{"b": null}'], ['{"b": 1}']),
        ({"properties": {"ab": {"type": "null"}}, "additionalProperties": True}, ['{"a": 1, "abc": 2}'], ['{"ab": 1}']),
        ({"prefixItems": [{"type": "null"}, {"type": "boolean"}], "minItems": 1}, ["[null]", "[null, true]"], ["[]"]),
        ({"prefixItems": [{"const": 1}], "items": {"const": 2}}, ["[]", "[1]", "[1, 2, 2]"], ["[2]", "[1, 1]"]),
        ({"prefixItems": [{"const": 1}], "minItems": 2, "maxItems": 2}, ['[1, "x"]'], ["[1]", "[1, 1, 1]"]),
        ({"items": False}, ["[]", "[ ]"], ["[1]"]),
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 0}, ["[]"], ["[1]"]),
        ({"type": "string", "enum": ["a", None]}, ['"a"'], ["null"]),
        ({"type": "number", "minimum": 0}, ["0.5", "1e3"], ["-1"]),
        ({"type": "integer", "minimum": -5, "maximum": -3}, ["-4"], ["-6", "-2", "4"]),
        ({"type": "string", "pattern": "^[A-Z]{2}-\\d+$"}, ['"AB-12"'], ['"A-1"', '"AB-"', '"xAB-1"']),
        ({"type": "string", "pattern": "^(?:a|\\.\\w)*$"}, ['""', '"a.ba"'], ['"."', '"b"']),
        ({"type": "string", "pattern": 'b"'}, ['"ab\\"c"'], ['"ab"']),
        ({"type": "string", "pattern": "^[^x]?$"}, ['"y"', '""'], ['"x"', '"\\""']),
        ({"format": "date-time"}, ['"2024-12-31T23:59:59.5+01:00"'], ['"2024-12-31"', '"2024-13-01T00:00:00Z"']),
        ({"format": "uuid"}, ['"123e4567-e89b-12d3-a456-426614174000"'], ['"123e4567"']),
        ({"format": "email"}, ['"a.b@example.org"'], ['"a.b"']),
        ({"format": "ipv4"}, ['"10.0.255.1"'], ['"10.0.256.1"']),
        ({"format": "uri"}, ['"https://example.org/a/b"'], ['"example"']),
    ],
)
def test_schemas_of_client_packages(schema: Any, good: list[str], bad: list[str]) -> None:
    grammar = grammar_of(schema)
    assert [text for text in good if not grammar.matches(text)] == []
    assert [text for text in bad if grammar.matches(text)] == []


@given(seed=SEEDS, form=st.sampled_from(["date", "time", "date-time", "uuid"]))
def test_texts_of_a_format_have_it(seed: int, form: str) -> None:
    check_samples({"type": "string", "format": form}, seed)


@given(
    seed=SEEDS, pattern=st.sampled_from(["^a+b?[c-e]{2}$", "x{2,}|yz", "^(a|(bc){1,3})d$", "\\s\\$", "^[\\w.-]+$", "é"])
)
def test_texts_of_a_pattern_have_it(seed: int, pattern: str) -> None:
    check_samples({"type": "string", "pattern": pattern}, seed)


@given(seed=SEEDS)
def test_recursion_ends_and_any_object_is_an_object(seed: int) -> None:
    check_samples(PERSON, seed)
    assert isinstance(json.loads(read_grammar(any_object_grammar()).sample(random.Random(seed))), dict)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (False, "schema"),
        ({"properties": {"a": {"pattern": "(?=x)"}}}, "schema.properties.a.pattern"),
        ({"pattern": "(a*)*"}, "schema.pattern"),
        ({"pattern": "^a|b"}, "schema.pattern"),
        ({"pattern": "a**"}, "schema.pattern"),
        ({"pattern": "[a"}, "schema.pattern"),
        ({"pattern": "\\b"}, "schema.pattern"),
        ({"pattern": "a\\"}, "schema.pattern"),
        ({"pattern": ")"}, "schema.pattern"),
        ({"pattern": "(" * 50 + ")" * 50}, "schema.pattern"),
        ({"pattern": "a", "maxLength": 3}, "schema.pattern"),
        ({"format": "regex"}, "schema.format"),
        ({"type": "integer", "multipleOf": 2}, "schema.multipleOf"),
        ({"items": {"not": {}}}, "schema.items.not"),
        ({"$defs": {"x": {"uniqueItems": True}}, "items": {"$ref": "#/$defs/x"}}, "schema.$defs.x.uniqueItems"),
        ({"type": "text"}, "schema.type"),
        ({"type": [{}]}, "schema.type"),
        ({"type": []}, "schema.type"),
        ({"enum": []}, "schema.enum"),
        ({"type": "null", "const": 1}, "schema.const"),
        ({"enum": [1], "minimum": 3}, "schema.minimum"),
        ({"properties": []}, "schema.properties"),
        ({"properties": {"a": 3}}, "schema.properties.a"),
        ({"required": "a"}, "schema.required"),
        ({"required": ["a"], "additionalProperties": False}, "schema.required"),
        ({"type": "object", "minProperties": 1}, "schema.minProperties"),
        ({"properties": {"a": {}, "b": {}}, "maxProperties": 1}, "schema.maxProperties"),
        ({"minItems": 2, "maxItems": 1}, "schema.maxItems"),
        ({"maxLength": 10**6}, "schema.maxLength"),
        ({"minLength": -1}, "schema.minLength"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "schema"),
        ({"type": "integer", "minimum": "3"}, "schema.minimum"),
        ({"anyOf": [{"type": "null"}, {"if": {}}]}, "schema.anyOf[1].if"),
        ({"allOf": [{"type": "null"}, {"type": "string"}]}, "schema.allOf[1].type"),
        ({"$ref": "https://example.org/x"}, "schema.$ref"),
        ({"$ref": "#/$defs/x"}, "schema.$ref"),
        ({"$ref": "#"}, "schema"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}}, "schema.$defs.a"),
        ({"allOf": [{"$ref": "#"}]}, "schema"),
    ],
)
def test_what_cannot_be_expressed_is_named(schema: Any, place: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        json_grammar(schema, "schema")
    assert refused.value.field == place


def doubling(key: str) -> Any:
    """A schema that says everything twice, thirty times over."""
    names = [f"#/$defs/{number}" for number in range(31)]
    defs: dict[str, Any] = {
        str(number): {key: [{"$ref": name}, {"$ref": name}]} for number, name in enumerate(names[1:])
    }
    return {"$ref": names[0], "$defs": defs | {"30": {"type": "object"}}}


def deep(levels: int) -> Any:
    schema: Any = {"type": "null"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        deep(200),
        deep(1000),
        {"type": "integer", "minimum": -(10**4000)},
        {"properties": {f"a{number}": {"enum": [number]} for number in range(20_000)}},
        {"properties": {f"a{number}": {"maxLength": 1000 + number} for number in range(50)}},
        {"items": {"prefixItems": [{}] * 6000}},
        {"pattern": "a{1,99999}"},
        {"pattern": "a" * 2000},
        doubling("allOf"),
        {"properties": {"x" * 5000: {}}, "additionalProperties": True},
    ],
)
def test_a_hostile_schema_is_refused_at_once(schema: Any) -> None:
    before = time.process_time()
    with pytest.raises(InvalidInput):
        json_grammar(schema, "schema")
    assert time.process_time() - before < 3


def test_a_schema_that_refers_to_all_its_parts_twice_stays_small() -> None:
    assert len(json_grammar(doubling("anyOf"), "schema")) < 20_000


def test_many_long_names_that_others_must_differ_from_cost_little() -> None:
    before = time.process_time()
    json_grammar(
        {"properties": {f"{'x' * 90}{number}": {} for number in range(1000)}, "additionalProperties": True}, "s"
    )
    assert time.process_time() - before < 3


def test_many_optional_properties_make_a_grammar_in_proportion() -> None:
    sizes = [
        len(json_grammar({"properties": {f"a{number}": {"type": "null"} for number in range(count)}}, "schema"))
        for count in (100, 400)
    ]
    assert sizes[1] < 6 * sizes[0]
    assert not re.search(r"\(\s*\)|\|\s*$", json_grammar({"type": "object", "properties": {}}, "schema"))
