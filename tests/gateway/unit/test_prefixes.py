"""Who answered the beginning of a prompt before."""

import json

from hypothesis import given
from hypothesis import strategies as st

from corral.gateway.prefixes import PrefixMemory, chain_of


def body(*texts: str, **fields: object) -> bytes:
    messages = [{"role": "user", "content": text} for text in texts]
    return json.dumps({"model": "m", **fields, "messages": messages, "stream": True}).encode()


def test_a_talk_that_goes_on_begins_as_before_whatever_stands_in_front_of_it() -> None:
    first, second = "a question " * 100, "another one " * 100
    before, now = chain_of(body(first)), chain_of(body(first, second, temperature=0.5))
    shared = sum(1 for mine, theirs in zip(before, now, strict=False) if mine == theirs)
    assert shared == len(before) - 1, "all windows but the last, which ends otherwise"
    assert chain_of(body(second))[0] != before[0]


def test_only_the_first_windows_count_and_bodies_without_a_prompt_have_a_chain_too() -> None:
    assert len(chain_of(body("x" * 100_000))) == 64
    assert len(chain_of(b"{}")) == 1
    assert chain_of(b"") == ()


def test_the_longest_beginning_that_is_not_too_old_is_found() -> None:
    memory = PrefixMemory()
    memory.keep("m", (1, 2), "old", now=10.0)
    memory.keep("m", (1, 3), "new", now=20.0)
    assert memory.find("m", (1, 2, 9, 9), since=10.0) == ("old", 0.5)
    assert memory.find("m", (1, 2, 9, 9), since=15.0) == ("new", 0.25)
    assert memory.find("m", (7,), since=0.0) is None
    assert memory.find("other", (1, 2), since=0.0) is None
    assert memory.find("m", (), since=0.0) is None


@given(st.lists(st.tuples(st.lists(st.integers(0, 30), max_size=6), st.sampled_from("ab")), max_size=40))
def test_it_never_grows_beyond_its_size_and_keeps_the_latest(asked: list[tuple[list[int], str]]) -> None:
    memory = PrefixMemory(8)
    for at, (chain, replica) in enumerate(asked):
        memory.keep("m", chain, replica, now=float(at))
        assert len(memory) <= 8
        if chain:
            assert memory.find("m", chain, since=float(at)) == (replica, 1.0)
