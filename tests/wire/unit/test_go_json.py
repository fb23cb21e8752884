"""JSON decoded the way LocalAI's peers do."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.base.errors import InvalidInput
from corral.wire.backends import InstallRequest
from corral.wire.go_json import decode, encode, format_time, parse_time
from corral.wire.registration import RegisterRequest
from corral.wire.subjects import node_stop, token


class Sample(msgspec.Struct):
    name: str = ""
    count: int = 0


@pytest.mark.parametrize(
    "text", ['{"name":"a","count":2}', '{"NAME":"a","Count":2,"extra":[1]}', '{"name":"a","count":2,"x":null}']
)
def test_names_match_without_regard_to_case_and_unknown_ones_are_ignored(text: str) -> None:
    assert decode(text.encode(), Sample) == Sample("a", 2)


def test_the_exact_name_wins_over_another_case_when_it_comes_last() -> None:
    assert decode(b'{"NAME":"a","name":"b"}', Sample).name == "b"


@pytest.mark.parametrize("text", [b"null", b'{"name":null,"count":null}', b"{}"])
def test_null_means_not_said(text: bytes) -> None:
    assert decode(text, Sample) == Sample()


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (b'{"name":1}', "name"),
        (b'{"count":"x"}', "count"),
        (b'{"count":1.5}', "count"),
        (b'{"count":true}', "count"),
        (b"", ""),
        (b'{"name":', ""),
        (b"[]", ""),
        (b'"text"', ""),
        (b"\xff\xfe", ""),
    ],
)
def test_what_cannot_be_used_names_the_field(text: bytes, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        decode(text, Sample)
    assert caught.value.field == field


def test_negative_bytes_are_refused_and_large_ones_kept() -> None:
    with pytest.raises(InvalidInput, match="total_vram"):
        decode(b'{"total_vram":-1}', RegisterRequest)
    assert decode(b'{"total_vram":9223372036854775807}', RegisterRequest).total_vram == 2**63 - 1


class Inner(msgspec.Struct, omit_defaults=True):
    name: str = ""
    share: float = 0


class Outer(msgspec.Struct, omit_defaults=True):
    one: Inner | msgspec.UnsetType = msgspec.UNSET
    many: list[Inner] = []
    by_name: dict[str, Inner] = {}
    maybe: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    chain: list[int] = []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"ONE":{"NAME":"a","x":1}}', Outer(one=Inner("a"))),
        ('{"one":null,"many":null,"by_name":null}', Outer()),
        ('{"Many":[{"Name":"a"},null]}', Outer(many=[Inner("a"), Inner()])),
        ('{"by_name":{"Key":{"Name":"a"}}}', Outer(by_name={"Key": Inner("a")})),
        ('{"maybe":null}', Outer(maybe=None)),
        ('{"maybe":["a"]}', Outer(maybe=["a"])),
        ('{"chain":[18446744073709551615,9007199254740993]}', Outer(chain=[2**64 - 1, 2**53 + 1])),
    ],
)
def test_the_same_holds_at_every_depth(text: str, expected: Outer) -> None:
    assert decode(text.encode(), Outer) == expected


def test_a_wrong_type_deep_down_names_its_place() -> None:
    with pytest.raises(InvalidInput) as caught:
        decode(b'{"many":[{"name":"a"},{"name":5}]}', Outer)
    assert caught.value.field == "many[1].name"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Outer(one=Inner("a", 100.0)), b'{"one":{"name":"a","share":100}}'),
        (Outer(many=[Inner(share=0.5)]), b'{"many":[{"share":0.5}]}'),
        (Outer(by_name={"k": Inner(share=-3.0)}), b'{"by_name":{"k":{"share":-3}}}'),
        (Outer(maybe=None), b'{"maybe":null}'),
        (Outer(chain=[2**64 - 1]), b'{"chain":[18446744073709551615]}'),
        (Outer(), b"{}"),
    ],
)
def test_whole_numbers_are_written_without_a_fraction(message: Outer, text: bytes) -> None:
    assert encode(message) == text


@given(st.binary(max_size=200))
def test_no_bytes_break_the_decoder(data: bytes) -> None:
    with contextlib.suppress(InvalidInput):
        decode(data, RegisterRequest)


def test_a_subject_token_is_made_safe_by_the_shared_rule() -> None:
    assert token("host.a 1*b") == "host-a-1-b"
    assert token("a>b\tc\nd") == "a-b-c-d"
    assert node_stop("x.y") == "nodes.x-y.stop"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["2026-11-15T19:37:47.39719Z", "2026-11-15T19:37:47Z", "0001-01-01T00:00:00Z", "2026-11-15T20:00:35.1Z"]
)
def test_times_keep_the_form_in_which_they_came(text: str) -> None:
    assert format_time(parse_time(text)) == text


def test_nanoseconds_are_cut_to_microseconds() -> None:
    assert format_time(parse_time("2026-11-15T19:51:16.885826616Z")) == "2026-11-15T19:51:16.885826Z"


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        parse_time("2026-11-15T19:51:16")


@pytest.mark.parametrize("depth", [10, 500, 900, 100_000])
@pytest.mark.parametrize("start", ["", '{"stranger": ', '{"backend": ', '{"backend_galleries": ', '{"corral": '])
def test_lists_a_mile_deep_are_bad_input_or_nothing_to_us(start: str, depth: int) -> None:
    deep = "[" * depth + "]" * depth + ("}" if start else "")
    with contextlib.suppress(InvalidInput):
        decode(f"{start}{deep}".encode(), InstallRequest)
