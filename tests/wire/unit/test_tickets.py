"""A ticket is good for one file, one pair of nodes and some minutes, and for nothing else."""

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.wire.tickets import FileTicket, check, issue

NOW = 1_000_000.0
SECRET = "the secret of the node that serves"
TICKET = FileTicket(
    key="models/m/weights.gguf", digest="ab" * 32, size=10, server="n1", fetcher="n2", expires=int(NOW) + 600
)


def test_a_good_ticket_says_what_it_allows() -> None:
    text = issue(TICKET, SECRET)

    assert check(text, SECRET, key=TICKET.key, fetcher="n2", now=NOW) == (TICKET, "")
    assert SECRET not in text
    assert all(character.isprintable() and character != " " for character in text)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"key": "models/m/other.gguf"}, "for another file"),
        ({"key": "models/m/weights.gguf/"}, "for another file"),
        ({"fetcher": "n3"}, "for another node"),
        ({"fetcher": ""}, "for another node"),
        ({"now": NOW + 600}, "expired"),
        ({"now": NOW + 10**9}, "expired"),
    ],
)
def test_it_is_good_for_nothing_else(change: dict[str, object], problem: str) -> None:
    asked: dict[str, object] = {"key": TICKET.key, "fetcher": "n2", "now": NOW, **change}

    assert check(issue(TICKET, SECRET), SECRET, **asked) == (None, problem)  # type: ignore[arg-type]


def test_another_node_does_not_take_it() -> None:
    assert check(issue(TICKET, "another secret"), SECRET, key=TICKET.key, fetcher="n2", now=NOW) == (None, "forged")


def test_without_a_secret_there_are_no_tickets() -> None:
    assert check(issue(TICKET, ""), "", key=TICKET.key, fetcher="n2", now=NOW) == (None, "malformed")


@pytest.mark.parametrize("changed", [{"expires": 2**40}, {"key": "models/x"}, {"fetcher": "n3"}, {"digest": "cd" * 32}])
def test_changed_content_is_noticed(changed: dict[str, object]) -> None:
    other = msgspec.structs.replace(TICKET, **changed)
    content = base64.urlsafe_b64encode(msgspec.json.encode(other)).rstrip(b"=").decode()
    forged = f"{content}.{issue(TICKET, SECRET).partition('.')[2]}"

    assert check(forged, SECRET, key=other.key, fetcher=other.fetcher, now=NOW) == (None, "forged")


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda data: data.decode("latin-1")))
def test_whatever_comes_is_refused(text: str) -> None:
    ticket, problem = check(text, SECRET, key=TICKET.key, fetcher="n2", now=NOW)

    assert ticket is None
    assert problem


@given(st.integers(0, 400), st.integers(0, 255))
def test_no_byte_can_be_changed(place: int, byte: int) -> None:
    text = issue(TICKET, SECRET)
    place %= len(text)
    changed = text[:place] + chr(byte) + text[place + 1 :]

    ticket, _ = check(changed, SECRET, key=TICKET.key, fetcher="n2", now=NOW)

    assert ticket is None or changed == text
