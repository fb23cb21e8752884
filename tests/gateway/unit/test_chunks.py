"""Chunked answers become plain ones, wherever the pieces are cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from corral.gateway.upstream import Unchunker
from tests.kit.engine import chunk


@given(
    contents=st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    cuts=st.lists(st.integers(0, 400), max_size=8),
    end=st.sampled_from([b"0\r\n\r\n", b"000;last\r\nX-Trailer: 1\r\n\r\n"]),
)
def test_the_content_is_the_same_however_it_is_cut(contents: list[bytes], cuts: list[int], end: bytes) -> None:
    data = b"".join(map(chunk, contents)) + end
    written: list[bytes] = []
    unchunker = Unchunker(written.append)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, stop in pairwise(edges):
        unchunker.write(data[start:stop])

    assert b"".join(written) == b"".join(contents)


def test_a_whole_event_is_written_as_soon_as_it_is_there() -> None:
    written: list[bytes] = []
    unchunker = Unchunker(written.append)

    unchunker.write(b"5\r\nfirst")
    unchunker.write(b"\r\n6;x=y\r\nsec")
    unchunker.write(b"ond\r\n0\r\n\r\n")

    assert written == [b"first", b"sec", b"ond"]
