"""The cookie of a session: what is read out of a header that may hold anything."""

import pytest

from corral.wire.keys import hash_secret
from corral.wire.sessions import cookie_name, csrf_of, has_session, hash_token, new_token, tokens_in

ONE, TWO = "A" * 43, "b-_" + "2" * 40


@pytest.mark.parametrize(
    ("cookies", "tokens"),
    [
        (f"corral_session={ONE}", [ONE]),
        (f"a=b; corral_session={ONE}; c=d", [ONE]),
        (f"a=b;corral_session={ONE}", [ONE]),
        (f'corral_session="{ONE}"', [ONE]),
        (f"corral_session={ONE}; corral_session={ONE}", [ONE]),
        (f"corral_session={ONE}; corral_session={TWO}", [ONE, TWO]),
        (f"corral_session_abcdefg7={ONE}; corral_session_bbbbbbbb={TWO}", [ONE, TWO]),
        (f"corral_session_abcdefg={ONE}", []),
        (f"corral_session_ABCDEFGH={ONE}", []),
        (f"corral_session_abcdefg77={ONE}", []),
        (f"xcorral_session={ONE}", []),
        (f"a=corral_session={ONE}", []),
        (f"Corral_Session={ONE}", []),
        ("corral_session=", []),
        (f"corral_session={ONE}x", []),
        (f"corral_session={ONE[:-1]}é", []),
        ("corral_session=" + "A" * 100_000, []),
        ("", []),
        (";;;=;=", []),
    ],
)
def test_tokens_are_found_and_nothing_else_is_taken_for_one(cookies: str, tokens: list[str]) -> None:
    assert tokens_in(cookies) == tokens


def test_of_very_many_cookies_only_some_are_looked_up() -> None:
    many = "; ".join(f"corral_session={new_token()}" for _ in range(1000))
    assert len(tokens_in(many)) == 8


def test_each_fleet_has_a_cookie_of_its_own() -> None:
    one, other = cookie_name("a" * 32), cookie_name("b" * 32)

    assert one != other
    assert tokens_in(f"{one}={ONE}; {other}={TWO}") == [ONE, TWO]


def test_a_cookie_that_can_be_no_token_is_still_a_session() -> None:
    assert has_session("corral_session=garbage")
    assert has_session(f"a=b; corral_session={ONE}")
    assert not has_session("a=b; corral_sessions=x")


def test_a_token_is_hashed_unlike_a_key_and_its_secret_unlike_both() -> None:
    token = new_token()
    assert tokens_in(f"corral_session={token}") == [token]
    assert len({token, hash_secret(token), hash_token(token), csrf_of(token)}) == 4
    assert csrf_of(token) == csrf_of(token) != csrf_of(new_token())
