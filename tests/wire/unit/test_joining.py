"""Join codes are read as people write and say them; everything else is refused without repeating it."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.base.errors import InvalidInput
from corral.wire.joining import (
    ALPHABET,
    base32,
    fingerprint_of,
    grouped,
    hash_code,
    new_code,
    pin_of,
    proof_message,
    read_code,
    read_join_url,
    read_pin,
)
from corral.wire.keys import hash_secret


def test_a_new_code_has_five_groups_and_is_read_back() -> None:
    code = new_code()
    assert [len(group) for group in code.split("-")] == [4] * 5
    assert read_code(code) == code
    assert len({new_code() for _ in range(1000)}) == 1000


@given(st.data())
def test_case_spaces_hyphens_and_lookalikes_do_not_matter(data: st.DataObject) -> None:
    beginning = data.draw(st.text(ALPHABET, min_size=16, max_size=16))
    code = grouped(beginning + _check(beginning))
    spoken = ""
    for character in code.replace("-", ""):
        lookalikes = {"0": "0Oo", "1": "1IiLl"}.get(character, character + character.lower())
        spoken += data.draw(st.sampled_from(lookalikes)) + data.draw(st.sampled_from(["", "", "-", " "]))
    assert read_code(f" {spoken}\n") == code


@given(st.integers(0, 19), st.sampled_from(ALPHABET))
def test_one_wrong_character_is_noticed(place: int, character: str) -> None:
    code = "0" * 16 + _check("0" * 16)
    assert read_code(code) == grouped(code)
    typed = code[:place] + character + code[place + 1 :]
    if typed == code:
        return
    with pytest.raises(InvalidInput):
        read_code(typed)


def _check(beginning: str) -> str:
    """The end of the code that begins like that, found as anybody could."""
    return base32(hashlib.sha256(b"corral join code check\n" + beginning.encode()).digest())[:4]


@given(st.text(min_size=21, max_size=60))
def test_text_that_is_no_code_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_code("K" + text.replace("-", "x").replace(" ", "x").replace("\t", "x") + "K")
    assert text not in str(refused.value)


def test_a_code_is_not_in_its_hash_and_hashes_differ() -> None:
    code = new_code()
    assert code not in hash_code(code)
    assert hash_code(code) != hash_code(new_code())


def test_a_fingerprint_follows_from_the_secret_alone_and_is_not_its_hash() -> None:
    secret_hash = hash_secret("s" * 43)
    assert fingerprint_of(secret_hash) == fingerprint_of(secret_hash)
    assert fingerprint_of(secret_hash) != fingerprint_of(hash_secret("t" * 43))
    assert fingerprint_of(secret_hash).replace("-", "").lower() not in secret_hash


@pytest.mark.parametrize("text", ["", "x", "a" * 31, "a" * 33, "1" * 32, "ä" * 32])
def test_what_is_no_pin_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="fleet pin"):
        read_pin(text)


def test_a_url_is_split_from_its_pin() -> None:
    pin = pin_of(b"k" * 32)
    assert read_join_url(f" https://a:8080#{pin.upper()} ") == ("https://a:8080", pin)
    assert read_join_url("http://a") == ("http://a", "")
    with pytest.raises(InvalidInput, match="fleet pin"):
        read_join_url("http://a#b")


def test_a_pin_is_read_as_it_is_written() -> None:
    assert read_pin(pin_of(b"k" * 32).upper()) == pin_of(b"k" * 32)


def test_what_is_signed_does_not_depend_on_the_order_of_certificates() -> None:
    assert proof_message("n", ["b", "a"]) == proof_message("n", ["a", "b"])
    assert proof_message("n", ["a"]) != proof_message("n", [])
