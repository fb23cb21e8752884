"""What the gateway reads of a body: a few fields, of which nothing is built that a client can make large."""

import json
import tracemalloc
from contextlib import suppress

import msgspec
import pytest

from corral.gateway.admit import RequestFields, asked_in_json
from corral.gateway.answers import GatewayRefusal

FIELDS = [field.name for field in msgspec.structs.fields(RequestFields)]


def check(asked: RequestFields, *, takes_null: bool = True) -> None:
    """What is done with the body of a request."""
    asked.check_messages(takes_null=takes_null)
    if asked.has_options():
        asked.check_options()


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_is_looked_at_is_an_option(field: str) -> None:
    is_option = field not in ("model", "messages")
    assert asked_in_json(b'{"%b": 1, "x": 2}' % field.encode()).has_options() == is_option


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_very_many_parts_is_not_built(field: str) -> None:
    body = b'{"%b": [%b[]]}' % (field.encode(), b"[]," * 100_000)
    tracemalloc.start()
    try:
        asked = asked_in_json(body)
        with suppress(GatewayRefusal):  # some may not be lists at all
            check(asked)
        asked.needs_care()
        with pytest.raises(GatewayRefusal):
            asked.named()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(body)


@pytest.mark.parametrize("written", [b"0", b"0.0", b"-0", b"0e3"])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_no_tokens_at_all_need_care_however_that_is_written(field: str, written: bytes) -> None:
    assert asked_in_json(b'{"model": "m", "%b": %b}' % (field.encode(), written)).needs_care()


@pytest.mark.parametrize("written", [b"null", b"1", b"-1", b'"0"', b"[0]", b"1" * 100])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_other_limits_of_tokens_need_no_care(field: str, written: bytes) -> None:
    assert not asked_in_json(b'{"model": "m", "%b": %b}' % (field.encode(), written)).needs_care()


@pytest.mark.parametrize(
    "field", ["dimensions", "echo", "suffix", "best_of", "modalities", "function_call", "stop_sequences"]
)
def test_nulls_need_no_care(field: str) -> None:
    assert not asked_in_json(b'{"model": "m", "%b": null}' % field.encode()).needs_care()


@pytest.mark.parametrize(
    "written", [b'"required"', b'"any"', b'{"type": "any"}', b'{"type": "tool", "name": "look"}', b'{"type": "auto"}']
)
def test_a_choice_of_tools_needs_care_also_without_tools(written: bytes) -> None:
    """llama.cpp looks at it only where there are tools, and answers with a text otherwise."""
    assert asked_in_json(b'{"model": "m", "tool_choice": %b}' % written).needs_care()


@pytest.mark.parametrize("written", [b'"auto"', b'"none"', b"null"])
def test_a_choice_that_is_free_needs_no_care(written: bytes) -> None:
    assert not asked_in_json(b'{"model": "m", "tool_choice":  %b }' % written).needs_care()


@pytest.mark.parametrize(
    "written",
    [
        b'"messages": [{"role": "user", "content": [{"type": "document"}]}]',
        b'"messages": [{"role": "user", "content":[{}]}]',
        b'"messages": [{"role": "user", "content" : null}]',
        b'"system": [{"type": "image"}]',
    ],
)
def test_messages_have_blocks(written: bytes) -> None:
    assert asked_in_json(b'{"model": "m", %b}' % written).has_blocks()


@pytest.mark.parametrize(
    "written",
    [
        b'"messages": [{"role": "user", "content": "hi"}]',
        b'"messages": [{"role": "user", "content": "write \\"content\\": [1]"}]',
        b'"system": "Be brief."',
    ],
)
def test_messages_of_plain_text_have_no_blocks(written: bytes) -> None:
    assert not asked_in_json(b'{"model": "m", %b}' % written).has_blocks()


@pytest.mark.parametrize("written", [b"5", b'"hello"', b'{"role": "user"}', b"true"])
def test_messages_that_are_no_list_are_refused(written: bytes) -> None:
    with pytest.raises(GatewayRefusal, match=r"`messages` must be a list$") as refused:
        check(asked_in_json(b'{"messages":  %b}' % written))
    assert refused.value.code == "invalid_type"


def test_null_is_no_list_where_engines_take_it_for_one() -> None:
    """llama.cpp answers such requests of `/v1/messages` with whatever comes to its mind."""
    asked = asked_in_json(b'{"messages": null}')
    check(asked)
    with pytest.raises(GatewayRefusal, match=r"`messages` must be a list$"):
        check(asked, takes_null=False)


WRONG_KINDS = [
    ("stop", b"5", "a string or a list of strings"),
    ("stop_sequences", b'"x"', "a list of strings"),
    ("top_logprobs", b'"3"', "a whole number"),
    ("system", b"{}", "a string or a list of blocks"),
    ("tool_choice", b"5", "a string or an object"),
    ("logit_bias", b'"x"', "an object"),
    ("stream_options", b"true", "an object"),
    ("response_format", b'"json"', "an object"),
    ("grammar", b"5", "a string"),
    ("grammar", b'["root"]', "a string"),
    ("top_n", b'"3"', "a whole number"),
]


@pytest.mark.parametrize(("field", "written", "kinds"), WRONG_KINDS)
def test_a_value_of_a_kind_that_engines_ignore_is_refused(field: str, written: bytes, kinds: str) -> None:
    with pytest.raises(GatewayRefusal, match=f"`{field}` must be {kinds}$") as refused:
        check(asked_in_json(b'{"messages": [1], "%b": %b}' % (field.encode(), written)))
    assert refused.value.code == "invalid_type"


@pytest.mark.parametrize("field", [field for field, _, _ in WRONG_KINDS])
def test_a_null_is_a_value_that_is_not_given(field: str) -> None:
    check(asked_in_json(b'{"messages": [1], "%b": null}' % field.encode()))


@pytest.mark.parametrize(
    "written",
    [b'"stop": "x"', b'"stop": ["x"]', b'"tool_choice": "auto"', b'"tool_choice": {}', b'"logit_bias": [[1, 2]]'],
)
def test_values_of_the_right_kind_are_left_to_the_engine(written: bytes) -> None:
    check(asked_in_json(b'{"messages": [1], %b}' % written))


def test_the_format_of_speech_is_a_word() -> None:
    check(asked_in_json(b'{"model": "m", "input": "hello", "response_format": "mp3"}'))


@pytest.mark.parametrize("written", ["2.1", "-0.5", "3", "1e3"])
def test_a_temperature_out_of_range_is_told_as_it_was_written(written: str) -> None:
    with pytest.raises(GatewayRefusal, match=f"`temperature` must be between 0 and 2, and is {written}$") as refused:
        check(asked_in_json(b'{"temperature": %b}' % written.encode()))
    assert refused.value.code == "invalid_value"


@pytest.mark.parametrize("written", [b"0", b"2", b"0.7", b"null", b'"9"', b"[9]"])
def test_other_temperatures_are_left_to_the_engine(written: bytes) -> None:
    check(asked_in_json(b'{"temperature": %b}' % written))


BITS = "a whole number, at most 2147483647"
WRONG_NUMBERS = [
    ("max_tokens", "2147483648", BITS),
    ("max_tokens", "9223372036854775808", BITS),
    ("max_tokens", "2.5", BITS),
    ("max_completion_tokens", "4294967299", BITS),
    ("max_output_tokens", "4294967299", BITS),
    ("n", "1.5", BITS),
    ("n", "1099511627776", BITS),
    ("top_p", "-1", "between 0 and 1"),
    ("top_p", "1.5", "between 0 and 1"),
    ("top_logprobs", "-1", "a whole number, between 0 and 2147483647"),
    ("top_n", "-1", "a whole number, between 0 and 2147483647"),
    ("top_n", "1.5", "a whole number, between 0 and 2147483647"),
]


@pytest.mark.parametrize(("field", "written", "limits"), WRONG_NUMBERS)
def test_a_number_that_an_engine_would_take_for_another_is_refused(field: str, written: str, limits: str) -> None:
    with pytest.raises(GatewayRefusal, match=f"^`{field}` must be {limits}, and is {written}$") as refused:
        check(asked_in_json(b'{"%b": %b}' % (field.encode(), written.encode())))
    assert refused.value.code == "invalid_value"


@pytest.mark.parametrize("written", [b"-1", b"0", b"5", b"5.0", b"2147483647", b"null", b'"5"', b"[5]"])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "max_output_tokens", "n"])
def test_other_counts_are_left_to_the_engine(field: str, written: bytes) -> None:
    check(asked_in_json(b'{"%b": %b}' % (field.encode(), written)))


@pytest.mark.parametrize("written", [b"true", b"false"])
@pytest.mark.parametrize("field", ["temperature", "max_tokens", "max_completion_tokens", "n", "top_p"])
def test_a_truth_is_no_number(field: str, written: bytes) -> None:
    """llama.cpp takes true for 1."""
    with pytest.raises(GatewayRefusal, match=f"^`{field}` must be a number$") as refused:
        check(asked_in_json(b'{"%b": %b}' % (field.encode(), written)))
    assert refused.value.code == "invalid_type"


@pytest.mark.parametrize("blanks", ["", " ", " " * 40, " \n\t\r" * 1000])
def test_an_empty_list_of_messages_is_refused_however_many_blanks_it_has(blanks: str) -> None:
    """llama.cpp invents an answer to it."""
    with pytest.raises(GatewayRefusal, match=r"`messages` must not be empty$"):
        check(asked_in_json(b'{"messages": [%b]}' % blanks.encode()))
    check(asked_in_json(b'{"messages": [%b{}]}' % blanks.encode()))


FORMAT, SCHEMA = "response_format", "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("written", "param"),
    [
        (b"{}", FORMAT),
        (b'{"type": 5}', FORMAT),
        (b'{"type": "json_schema", "json_schema": 5}', FORMAT),
        (b'{"type": "json_schema"}', SCHEMA),
        (b'{"type": "json_schema", "json_schema": null}', SCHEMA),
        (b'{"type": "json_schema", "json_schema": {"name": "x"}}', SCHEMA),
        (b'{"type": "json_schema", "json_schema": {"schema": null}}', SCHEMA),
        (b'{"type": "json_schema", "json_schema": {"schema": 5}}', SCHEMA),
    ],
)
def test_a_format_that_says_nothing_is_refused(written: bytes, param: str) -> None:
    """llama.cpp takes it for a text, or for any JSON."""
    with pytest.raises(GatewayRefusal, match=f"^`{param}` must ") as refused:
        check(asked_in_json(b'{"messages": [1], "response_format": %b}' % written))
    assert json.loads(refused.value.answer(b"r").body)["error"]["param"] == param


@pytest.mark.parametrize(
    "written",
    [
        b'{"type": "text"}',
        b'{"type": "json_object", "schema": {}}',
        b'{"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}',
        b'{"type": "json_schema", "json_schema": {"schema": true, "strict": true}}',
        b'{"type": "xml"}',
    ],
)
def test_other_formats_are_left_to_the_engine(written: bytes) -> None:
    check(asked_in_json(b'{"messages": [1], "response_format": %b}' % written))


@pytest.mark.parametrize("written", [b'""', b'["x", ""]', b'["\\"", ""]'])
@pytest.mark.parametrize("field", ["stop", "stop_sequences"])
def test_an_empty_stop_sequence_is_refused(field: str, written: bytes) -> None:
    """llama.cpp finds it before the first word, and answers nothing."""
    if field == "stop_sequences" and not written.startswith(b"["):
        written = b"[%b]" % written
    with pytest.raises(GatewayRefusal, match=f"^`{field}` must not have an empty string$"):
        check(asked_in_json(b'{"%b": %b}' % (field.encode(), written)))


@pytest.mark.parametrize("written", [b"[]", b'"x"', rb'["\""]', rb'"\""', b'["x", 5, ""]', b"null"])
def test_other_stop_sequences_are_left_to_the_engine(written: bytes) -> None:
    check(asked_in_json(b'{"stop": %b}' % written))


def test_a_name_may_have_escapes() -> None:
    assert asked_in_json(rb'{"model": "caf\u00e9 \"x\""}').named() == 'café "x"'
