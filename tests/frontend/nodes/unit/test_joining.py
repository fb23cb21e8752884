"""From bodies to the domain's words: nothing a peer sends breaks it, and what is wrong is named."""

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.base.errors import InvalidInput
from corral.frontend.nodes.shapes import read_heartbeat, read_registration, secret_of
from corral.wire.go_json import decode
from corral.wire.registration import CAPACITY_FIELDS, RegisterRequest

NOW = datetime(2026, 1, 1, tzinfo=UTC)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
field_names = st.sampled_from(RegisterRequest.__struct_encode_fields__)


@given(st.dictionaries(field_names, json_values))
def test_any_registration_is_either_understood_or_refused_with_a_sentence(body: dict[str, object]) -> None:
    try:
        request = decode(msgspec.json.encode(body), RegisterRequest)
        registration = read_registration(request)
    except InvalidInput:
        return
    assert registration.name.strip()
    assert all(0 <= value < 2**63 for value in registration.measured.values())


@given(st.dictionaries(st.sampled_from([*CAPACITY_FIELDS, "gpu_vendor", "corral", "AVAILABLE_RAM"]), json_values))
def test_any_heartbeat_is_taken_and_what_was_ignored_is_named(body: dict[str, object]) -> None:
    beat = read_heartbeat(msgspec.json.encode(body), NOW)
    assert all(isinstance(value, int) and value >= 0 for value in beat.measured.values())
    for name in CAPACITY_FIELDS:
        value = body.get(name)
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
        if name in body and value is not None and not fits:
            assert any(problem.startswith(name) for problem in beat.problems)


@given(st.binary(max_size=100))
def test_any_bytes_are_a_heartbeat(body: bytes) -> None:
    assert read_heartbeat(body, NOW).at == NOW


@pytest.mark.parametrize("name", ["a\nb", "a\x00b", "\x1b[31mred"])
def test_names_that_would_garble_a_terminal_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="control characters"):
        read_registration(RegisterRequest(name=name, address="a:1"))


def test_a_secret_counts_only_when_the_feature_is_named() -> None:
    body = b'{"name":"w","address":"a:1","corral":{"version":"1","features":[%s],"secret":"%s"}}'
    with_feature = decode(body % (b'"node-secret"', b"s" * 40), RegisterRequest)
    without = decode(body % (b"", b"s" * 40), RegisterRequest)
    assert (secret_of(with_feature), secret_of(without)) == ("s" * 40, None)
    assert read_registration(without).secret_hash is None


@pytest.mark.parametrize(
    "label", [{"": "v"}, {"k" * 129: "v"}, {"k": "v" * 256}], ids=["no key", "a long key", "a long value"]
)
def test_a_worker_is_not_turned_away_for_a_label(label: dict[str, str]) -> None:
    registration = read_registration(RegisterRequest(name="w", address="a:1", labels={"site": "lab", **label}))
    assert registration.labels == {"site": "lab"}
    assert registration.problems[0].startswith("labels: ")


@pytest.mark.parametrize("size", [2**63, 2**64 - 4096])
def test_a_worker_is_not_turned_away_for_a_size_that_nobody_can_store(size: int) -> None:
    """Go's workers count in 64 bits without a sign, and some file systems state more than any disk has."""
    body = msgspec.json.encode({"name": "w", "address": "a:1", "total_disk": size, "available_ram": 1})

    registration = read_registration(decode(body, RegisterRequest))

    assert registration.measured == {"available_ram": 1}
    assert registration.problems == (f"total_disk: expected a number of bytes, got {size}; ignored",)


def test_labels_beyond_the_limit_are_left_out() -> None:
    labels = {f"k{number}": "v" for number in range(300)}
    registration = read_registration(RegisterRequest(name="w", address="a:1", labels=labels))
    assert (len(registration.labels), len(registration.problems)) == (256, 10)


def test_null_among_labels_is_an_empty_one() -> None:
    body = b'{"name":"w","address":"a:1","labels":{"a":null,"b":"c"}}'
    assert read_registration(decode(body, RegisterRequest)).labels == {"a": "", "b": "c"}


@pytest.mark.parametrize("limit", [2**63, -(2**63) - 1])
def test_a_number_of_replicas_that_nobody_can_store_is_refused(limit: int) -> None:
    body = msgspec.json.encode({"name": "w", "address": "a:1", "max_replicas_per_model": limit})
    with pytest.raises(InvalidInput, match="max_replicas_per_model"):
        decode(body, RegisterRequest)


@pytest.mark.parametrize("seconds", [-1, 3601, 1e9])
def test_an_odd_interval_is_ignored_and_shown(seconds: float) -> None:
    body = {"name": "w", "address": "a:1", "corral": {"version": "1", "heartbeat_seconds": seconds}}
    registration = read_registration(decode(msgspec.json.encode(body), RegisterRequest))
    assert registration.interval is None
    assert "heartbeat_seconds" in registration.problems[0]
