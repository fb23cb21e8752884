"""Passwords take time and memory, and guessing them takes longer."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.frontend.access import passwords
from corral.frontend.access.passwords import (
    FOR_NAME,
    FOR_NAME_FROM_SOURCE,
    FROM_SOURCE,
    GuessLimits,
    PasswordHasher,
    TooManyLogins,
)

NOW = 1000.0


async def test_a_hash_is_argon2id_and_fits_its_password_only() -> None:
    hasher = PasswordHasher()
    hash = await hasher.hash("correct horse")
    assert hash.startswith("$argon2id$v=19$m=65536,t=2,p=1$")
    assert await hasher.matches(hash, "correct horse")
    assert not await hasher.matches(hash, "correct horsf")
    assert not await hasher.matches(hash, "")
    assert await hasher.hash("correct horse") != hash


@pytest.mark.parametrize("hash", [None, "", "plain", "$argon2id$v=19$m=65536,t=2,p=1$x$y"])
async def test_what_is_no_hash_fits_nothing(hash: str | None) -> None:
    assert not await PasswordHasher().matches(hash, "correct horse")


async def test_a_name_that_nobody_has_costs_a_hash_too(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[bytes] = []

    def verify(hash: bytes, password: bytes) -> bool:
        checked.append(hash)
        return True

    monkeypatch.setattr(passwords.argon2id, "verify", verify)
    assert not await PasswordHasher().matches(None, "correct horse")
    assert checked[0].startswith(b"$argon2id$v=19$m=65536,t=2,p=1$")


async def test_only_so_many_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_WAITING", 2)
    hasher = PasswordHasher()
    first = [asyncio.ensure_future(hasher.hash("correct horse")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyLogins):
        await hasher.hash("correct horse")
    await asyncio.gather(*first)
    await hasher.hash("correct horse")


def guess(limits: GuessLimits, *, name: str = "alice", source: str = "10.0.0.1", now: float = NOW) -> bool:
    try:
        limits.take(name=name, source=source, now=now)
    except TooManyLogins:
        return False
    return True


def test_a_source_has_some_guesses_for_a_name_and_regains_one_after_the_other() -> None:
    limits, (most, pause) = GuessLimits(), FOR_NAME_FROM_SOURCE
    assert [guess(limits) for _ in range(most + 2)] == [True] * most + [False] * 2
    with pytest.raises(TooManyLogins, match="try again in 30 s"):
        limits.take(name="alice", source="10.0.0.1", now=NOW)
    assert guess(limits, now=NOW + pause)
    assert not guess(limits, now=NOW + pause)


def test_who_guesses_from_some_sources_does_not_keep_the_owner_out() -> None:
    limits = GuessLimits()
    for number in range(20):
        while guess(limits, source=f"10.0.0.{number}"):
            pass
    assert guess(limits, source="10.9.9.9")


def test_a_name_has_many_guesses_from_everywhere_together() -> None:
    limits, (most, pause) = GuessLimits(), FOR_NAME
    made = [guess(limits, source=f"source {number}") for number in range(most + 1)]
    assert made == [True] * most + [False]
    assert guess(limits, source="new", now=NOW + pause)
    assert guess(limits, name="bob", source="new")


def test_a_source_has_some_guesses_for_all_names_together() -> None:
    limits, most = GuessLimits(), FROM_SOURCE.guesses
    assert [guess(limits, name=f"user{number}") for number in range(most + 1)] == [True] * most + [False]
    assert guess(limits, name="user0", source="10.0.0.2")


def test_right_passwords_are_not_counted() -> None:
    limits = GuessLimits()
    for _ in range(FROM_SOURCE.guesses * 3):
        assert guess(limits)
        limits.give_back(name="alice", source="10.0.0.1")


def test_memory_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_REMEMBERED", 50)
    limits = GuessLimits()
    for number in range(200):
        guess(limits, name=f"n{number}", source=f"s{number}")
    assert len(limits) == 50


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 40)), max_size=200))
def test_nothing_is_guessed_faster_than_allowed(tries: list[tuple[int, int, int]]) -> None:
    limits, now = GuessLimits(), NOW
    made: list[tuple[int, int, float]] = []
    for name, source, pause in tries:
        now += pause
        if guess(limits, name=f"n{name}", source=f"s{source}", now=now):
            made.append((name, source, now))
    for limit, parts in ((FOR_NAME_FROM_SOURCE, slice(0, 2)), (FROM_SOURCE, slice(1, 2)), (FOR_NAME, slice(0, 1))):
        for subject in {each[parts] for each in made}:
            times = [each[2] for each in made if each[parts] == subject]
            for start in range(len(times)):
                for end in range(start, len(times)):
                    regained = (times[end] - times[start]) / limit.regained_after
                    assert end - start + 1 <= limit.guesses + regained
