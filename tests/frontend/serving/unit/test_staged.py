"""Making room on a node: only what nobody needs, the longest unused first, just enough, or nothing at all."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from corral.base.ids import NodeId
from corral.frontend.serving.staging.decide.sources import SourceKind, StagingPolicy
from corral.frontend.serving.staging.decide.staged import (
    RoomPlan,
    StagedFile,
    StagedModel,
    make_room,
    missing_bytes,
    needed_bytes,
    strangers,
    too_full,
)

GIB = 1024**3
START = datetime(2030, 1, 1, tzinfo=UTC)


def policy(reserve: int = GIB) -> StagingPolicy:
    return StagingPolicy(order=(SourceKind.FRONTEND,), fan_out=2, least_bytes=0, reserve_bytes=reserve)


def staged(model: str, size: int, used: int, *paths: str) -> StagedModel:
    return StagedModel(
        node_id=NodeId("n1"),
        model=model,
        revision="r",
        bytes=size,
        files=tuple(StagedFile(path=path, size=size, digest="sha256:x") for path in paths or ("weights.gguf",)),
        staged_at=START,
        used_at=START + timedelta(hours=used),
    )


def test_the_reserve_is_that_of_the_reference() -> None:
    assert needed_bytes(70 * GIB, policy()) == 70 * GIB + 70 * GIB // 20
    assert needed_bytes(GIB, policy()) == 2 * GIB
    assert needed_bytes(0, policy()) == 0


def test_nothing_goes_where_there_is_room_or_nobody_knows() -> None:
    there = [staged("old", 100 * GIB, 0)]

    assert make_room(GIB, 2 * GIB, there, {}, policy()) == RoomPlan()
    assert make_room(GIB, None, there, {}, policy()) == RoomPlan()
    assert make_room(0, 0, there, {}, policy()) == RoomPlan()


def test_the_longest_unused_goes_first() -> None:
    there = [staged("new", 5 * GIB, 9), staged("old", 5 * GIB, 1), staged("middle", 5 * GIB, 5)]

    assert make_room(6 * GIB, 2 * GIB, there, {}, policy()).delete == ("old",)
    assert make_room(10 * GIB, 2 * GIB, there, {}, policy()).delete == ("old", "middle")


def test_what_a_larger_one_makes_unnecessary_stays() -> None:
    there = [staged("small", GIB, 1), staged("large", 50 * GIB, 2)]

    assert make_room(10 * GIB, 0, there, {}, policy()).delete == ("large",)


def test_what_is_needed_stays_and_nothing_goes_in_vain() -> None:
    there = [staged("used", 50 * GIB, 0), staged("idle", 5 * GIB, 5)]

    plan = make_room(20 * GIB, 0, there, {"used": "a replica of it is there"}, policy())

    assert plan == RoomPlan(lacking_bytes=16 * GIB)
    sentence = too_full(20 * GIB, 0, plan, {"used": "a replica of it is there"}, policy())
    assert "20.0 GiB" in sentence
    assert "16.0 GiB are missing" in sentence
    assert "used stays: a replica of it is there" in sentence
    assert "node_min_free" in sentence


def test_models_whose_files_are_not_recorded_stay() -> None:
    unknown = StagedModel(node_id=NodeId("n1"), model="m", revision="", bytes=GIB, staged_at=START, used_at=START)

    assert make_room(GIB, GIB, [unknown], {}, policy()).lacking_bytes == GIB


def test_files_of_others_in_a_directory_are_noticed() -> None:
    model = staged("m", 1, 0, "a.gguf", "sub/b.bin")

    assert strangers(["a.gguf", "a.gguf.sha256", "sub/b.bin", "sub/b.bin.sha256.target"], model) == []
    assert strangers(["a.gguf", "notes.txt", "other/a.gguf"], model) == ["notes.txt", "other/a.gguf"]


def test_only_what_is_missing_counts() -> None:
    before = staged("m", 10, 0, "a", "b")
    files = [StagedFile(path="a", size=10, digest="sha256:x"), StagedFile(path="b", size=10, digest="sha256:y")]

    assert missing_bytes(files, before) == 10
    assert missing_bytes(files, None) == 20


MODELS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 100), st.booleans()), max_size=12).map(
    lambda rows: [(staged(f"m{number}", size, used), needed) for number, (size, used, needed) in enumerate(rows)]
)


@given(payload=st.integers(0, 100), free=st.integers(0, 100), reserve=st.integers(0, 30), rows=MODELS)
def test_room_is_made_by_the_rules(payload: int, free: int, reserve: int, rows: list[tuple[StagedModel, bool]]) -> None:
    there = [model for model, _ in rows]
    needed = {model.model: "needed" for model, is_needed in rows if is_needed}
    rules = policy(reserve)
    sizes = {model.model: model.bytes for model in there}

    plan = make_room(payload, free, there, needed, rules)

    assert not set(plan.delete) & needed.keys()
    freed = sum(sizes[name] for name in plan.delete)
    wanted = needed_bytes(payload, rules)
    if plan.lacking_bytes:
        everything = sum(size for name, size in sizes.items() if name not in needed)
        assert not plan.delete
        assert free + everything + plan.lacking_bytes == wanted
        return
    assert free + freed >= wanted or wanted == 0
    for name in plan.delete:
        assert free + freed - sizes[name] < wanted, "each of them is necessary"
    rest = [model for model in there if model.model not in plan.delete]
    again = make_room(payload, free + freed, rest, needed, rules)
    assert again == RoomPlan(), "plan, apply, plan again is empty"
