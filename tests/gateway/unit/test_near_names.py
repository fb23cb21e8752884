"""The hint for a model that does not exist: near names, found without holding the loop up."""

import difflib

import pytest

from corral.gateway.answers import GatewayRefusal
from corral.gateway.view import Directory
from corral.wire.view import ModelEntry, ReplicaEntry, View


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many names each search has compared."""
    counts: list[int] = []
    search = difflib.get_close_matches

    def counting(word: str, possibilities: list[str], n: int = 3, cutoff: float = 0.6) -> list[str]:
        counts.append(len(possibilities))
        return search(word, possibilities, n=n, cutoff=cutoff)

    monkeypatch.setattr(difflib, "get_close_matches", counting)
    return counts


def directory(*names: str) -> Directory:
    made = Directory()
    made.hear(view(1, *names), now=0.0)
    return made


def view(version: int, *names: str, replicas: dict[str, ReplicaEntry] | None = None) -> View:
    return View(version=version, models={name: ModelEntry(name=name) for name in names}, replicas=replicas or {})


def hint(known: Directory, name: str) -> str:
    with pytest.raises(GatewayRefusal) as refused:
        known.find_model(name)
    return str(refused.value)


MANY = [f"{kind}-{number:04d}" for kind in ("alpaca", "falcon", "gemma", "qwen") for number in range(2500)]


@pytest.mark.parametrize(
    "typed", ["gemma-1b-instruct-q4x", "gemma-1b-instrct-q4", "hemma-1b-instruct-q4", "Gemma-1B-Instruct-Q4"]
)
def test_among_many_names_a_mistyped_one_is_found_with_few_comparisons(compared: list[int], typed: str) -> None:
    assert "did you mean gemma-1b-instruct-q4" in hint(directory(*MANY, "gemma-1b-instruct-q4"), typed)
    assert compared[0] <= 40


@pytest.mark.parametrize("count", [0, 1, 39, 40, 41, 10_000])
def test_a_search_compares_few_names_however_many_there_are(compared: list[int], count: int) -> None:
    known = directory(*MANY[:count])
    for name in ("", "a", "falcon-", "zzz", "x" * 500):
        hint(known, name)
    assert max(compared) <= 40


def test_a_repeated_mistake_is_not_searched_again_until_other_models_are_known(compared: list[int]) -> None:
    known = directory("echo")
    assert hint(known, "eco") == hint(known, "eco")
    replica = ReplicaEntry(id="r", model="echo", node_id="n", url="http://127.0.0.1:1")
    known.hear(view(2, "echo", replicas={"r": replica}), now=0.0)
    assert "did you mean echo?" in hint(known, "eco")
    assert len(compared) == 1
    known.hear(view(3, "ecco"), now=0.0)
    assert "did you mean ecco?" in hint(known, "eco")
    assert len(compared) == 2


def test_the_memory_of_mistakes_is_bounded() -> None:
    known = directory("echo")
    for number in range(1000):
        hint(known, f"model {number}")
    assert len(known._near_names._cached) <= 256
