"""Usage is read from the end of an answer, or unknown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.gateway.usage import TAIL, Tail, Usage, read_usage

OPENAI = b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":10,"total_tokens":15}}'
LLAMA = b'data: {"choices":[],"timings":{"cache_n":2,"prompt_n":3,"prompt_ms":1.5,"predicted_n":7}}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (OPENAI, Usage(5, 10)),
        (LLAMA, Usage(5, 7)),
        (b'"usage":{"completion_tokens":1,"prompt_tokens":2,"prompt_tokens_details":{"cached_tokens":9}}', Usage(2, 1)),
        (b'"usage": {"prompt_tokens": 4, "total_tokens": 4}', Usage(4, 0)),
        (b'"usage":null} ... ' + OPENAI, Usage(5, 10)),
        (OPENAI + OPENAI.replace(b"10", b"11"), Usage(5, 11)),
        (b'"usage":{"prompt_tokens":1\r\n5\r\n2,"completion_tokens":3}', None),
        (b'"usage":{"prompt_tokens":12,"comple\r\n5\r\ntion_tokens":3}', None),
        (b'"usage":{"prompt_tokens":12,"completion_tokens":3', None),
        (b'{"content":"\\"usage\\":{\\"prompt_tokens\\":1,\\"completion_tokens\\":2}"}', None),
        (b'"usage":{}', None),
        (b"", None),
    ],
)
def test_what_is_told_in_full_is_known(tail: bytes, expected: Usage | None) -> None:
    assert read_usage(tail) == expected


@given(st.lists(st.binary(max_size=6000), max_size=8))
def test_a_tail_is_the_end_of_what_passed_and_is_bounded(pieces: list[bytes]) -> None:
    tail = Tail()
    for piece in pieces:
        tail.add(piece)
    kept, whole = b"".join(tail._pieces), b"".join(pieces)
    assert whole.endswith(kept)
    assert len(kept) >= min(TAIL, len(whole))
    assert len(kept) < 2 * TAIL


def test_a_tail_keeps_references_of_small_pieces() -> None:
    tail, piece = Tail(), bytes(100)
    tail.add(piece)
    assert tail._pieces[0] is piece
