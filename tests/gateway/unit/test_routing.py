"""Which replica answers."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from corral.gateway.view import Directory, pick
from corral.wire.view import AffinityEntry, EngineEntry, ModelEntry, ReplicaEntry, View


@dataclass(frozen=True, slots=True)
class Replica:
    id: str
    rank: int = 0
    limit: int = 0
    in_flight: int = 0
    weight: int = 1


def test_nobody_is_picked_where_there_is_nobody() -> None:
    assert pick([], turn=0) is None


def test_the_better_rank_wins_over_less_load() -> None:
    assert pick([Replica("silent", rank=1), Replica("busy", in_flight=9)], turn=0) == Replica("busy", in_flight=9)


def test_a_worse_rank_serves_when_better_ones_are_full_or_excluded() -> None:
    silent, full = Replica("silent", rank=1), Replica("full", limit=2, in_flight=2)
    assert pick([full, silent], turn=0) is silent
    assert pick([Replica("failed"), silent], turn=0, exclude={"failed"}) is silent


def test_the_least_loaded_is_picked() -> None:
    assert pick([Replica("a", in_flight=2), Replica("b", in_flight=1)], turn=5) == Replica("b", in_flight=1)


def test_full_replicas_let_wait() -> None:
    assert pick([Replica("a", limit=1, in_flight=1), Replica("b", limit=1, in_flight=2)], turn=0) is None


def test_equals_take_turns() -> None:
    equals = [Replica(name) for name in "abc"]
    found = Counter(pick(equals, turn=turn) for turn in range(9))
    assert set(found.values()) == {3}


replicas = st.lists(
    st.builds(Replica, st.sampled_from("abcdef"), st.integers(0, 2), st.integers(0, 3), st.integers(0, 4)),
    max_size=8,
)


@given(replicas, st.integers(0, 1000), st.sets(st.sampled_from("abcdef")))
def test_the_choice_is_always_allowed_and_never_worse_than_another(
    found: list[Replica], turn: int, exclude: set[str]
) -> None:
    allowed = [one for one in found if one.id not in exclude and (not one.limit or one.in_flight < one.limit)]
    chosen = pick(found, turn=turn, exclude=exclude)
    assert (chosen is None) == (not allowed)
    if chosen is not None:
        assert chosen in allowed
        assert (chosen.rank, chosen.in_flight) == min((one.rank, one.in_flight) for one in allowed)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 1000))
def test_equally_loaded_replicas_are_picked_as_often_as_they_weigh(weights: list[int], first: int) -> None:
    replicas = [Replica(str(place), weight=weight) for place, weight in enumerate(weights)]
    picked = Counter(chosen.id for turn in range(sum(weights)) if (chosen := pick(replicas, turn=first + turn)))
    assert [picked[str(place)] for place in range(len(weights))] == weights


def test_a_heavy_replica_is_as_busy_with_more_requests() -> None:
    heavy, light = Replica("heavy", weight=3, in_flight=2), Replica("light", in_flight=1)
    assert all(pick([heavy, light], turn=turn) is heavy for turn in range(4))
    heavy = Replica("heavy", weight=3, in_flight=6)
    assert all(pick([heavy, light], turn=turn) is light for turn in range(4))


def test_who_knows_the_prompt_is_measured_by_its_weight() -> None:
    """An engine of twice the weight may have twice as many requests, as in `pick`."""
    engine = EngineEntry(model="m", weight=4)
    heavy = ReplicaEntry(id="heavy", model="m", node_id="", url="http://127.0.0.1:1", engine=engine)
    light = ReplicaEntry(id="light", model="m", node_id="n", url="http://127.0.0.1:2")
    directory = Directory()
    models = {"m": ModelEntry(name="m", affinity=AffinityEntry(most_ahead=2, most_times=1.5))}
    directory.hear(View(version=1, models=models, replicas={"heavy": heavy, "light": light}), now=0.0)
    replica = directory.pick_known("m", "heavy", ())
    assert replica is not None

    replica.in_flight = 7
    assert directory.pick_known("m", "heavy", ()) is replica
    replica.in_flight = 8
    assert directory.pick_known("m", "heavy", ()) is None
