"""The view: a full one and all changes after it give the next full one."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.wire.view import (
    Beat,
    GatewayReport,
    KeyEntry,
    ModelEntry,
    ReplicaEntry,
    VersionGap,
    View,
    ViewChange,
    apply,
    change_between,
    decode_line,
    encode_line,
)

names = st.sampled_from(["a", "b", "c", "d"])
models = st.dictionaries(names, st.integers(0, 2)).map(
    lambda found: {name: ModelEntry(name=name, created=created) for name, created in found.items()}
)
replicas = st.dictionaries(names, st.integers(0, 2)).map(
    lambda found: {id: ReplicaEntry(id=id, model="m", node_id="n", url="http://h:1", rank=n) for id, n in found.items()}
)
keys = st.dictionaries(names, st.sampled_from([None, 1.5])).map(
    lambda found: {hash: KeyEntry(hash=hash, scopes=("inference",), expires_at=end) for hash, end in found.items()}
)
parts = st.tuples(models, replicas, keys)


def views(found: list[tuple[dict[str, ModelEntry], dict[str, ReplicaEntry], dict[str, KeyEntry]]]) -> list[View]:
    return [View(version=n, models=m, replicas=r, keys=k) for n, (m, r, k) in enumerate(found, start=1)]


@given(st.lists(parts, min_size=1, max_size=6).map(views))
def test_a_full_view_and_all_changes_give_the_last_view(found: list[View]) -> None:
    lines = [encode_line(found[0])]
    lines += [encode_line(change_between(old, new)) for old, new in itertools.pairwise(found)]

    view = None
    for line in lines:
        assert line.count(b"\n") == 1
        view = apply(view, decode_line(line))

    assert view == found[-1]


def test_applying_changes_nothing_that_was_there() -> None:
    view = View(version=1, models={"a": ModelEntry(name="a")})
    new = apply(view, ViewChange(base=1, version=2, gone_models=["a", "never there"]))
    assert (list(view.models), list(new.models)) == (["a"], [])


@pytest.mark.parametrize("have", [None, View(version=1), View(version=4)])
@pytest.mark.parametrize("message", [ViewChange(base=2, version=3), Beat(version=2)])
def test_a_gap_is_noticed(have: View | None, message: ViewChange | Beat) -> None:
    with pytest.raises(VersionGap) as caught:
        apply(have, message)
    assert caught.value.retryable


def test_a_full_view_is_taken_whatever_came_before() -> None:
    """Also one with a lower number: control was restored, or is another one."""
    assert apply(View(version=9), View(version=1)) == View(version=1)


def test_a_beat_changes_nothing() -> None:
    view = View(version=3)
    assert apply(view, Beat(version=3)) is view


def test_fields_of_newer_versions_are_ignored() -> None:
    line = b'{"kind":"full","version":1,"new":[1],"models":{"a":{"name":"a","shape":"round"}}}\n'
    assert decode_line(line) == View(version=1, models={"a": ModelEntry(name="a")})


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"kind":"other"}', b'{"kind":"change","version":1}'])
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_line(line)


def test_a_report_survives_the_wire() -> None:
    report = GatewayReport(gateway="g", sequence=1, in_flight={"r": 2})
    assert msgspec.json.decode(msgspec.json.encode(report), type=GatewayReport) == report
