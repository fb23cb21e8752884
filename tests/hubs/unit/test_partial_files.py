"""The ledger of a partial file: whatever happens to it, it never claims bytes that are not there."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from corral.hubs.downloads.partial_files import LedgerFacts, PartialFile, PartialFolder, PieceLedger, key_of

SIZES = st.integers(1, 5000)
PIECES = st.integers(1, 700)
ASCII = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=60)


def facts(size: int, piece_bytes: int, *, boot: str = "boot", identity: str = "", validator: str = "") -> LedgerFacts:
    return LedgerFacts(size=size, piece_bytes=piece_bytes, boot=boot, identity=identity, validator=validator)


@contextmanager
def a_ledger(size: int, piece_bytes: int) -> Iterator[tuple[PieceLedger, int]]:
    with tempfile.TemporaryFile() as file:
        ledger = PieceLedger.new(file.fileno(), facts(size, piece_bytes))
        try:
            yield ledger, file.fileno()
        finally:
            ledger.close()


@given(SIZES, PIECES, st.lists(st.tuples(st.integers(1, 8), st.integers(0, 4000)), max_size=60))
def test_claims_never_overlap_and_lead_to_the_end(size: int, piece_bytes: int, acts: list[tuple[int, int]]) -> None:
    there: set[int] = set()
    with a_ledger(size, piece_bytes) as (ledger, descriptor):
        held: list[tuple[int, int]] = []
        for connections, count in acts:
            span = ledger.claim(connections)
            if span is None:
                break
            assert span[0] < span[1] <= size
            assert not any(span[0] < end and start < span[1] for start, end in held)
            written = min(count, span[1] - span[0])
            ledger.advance(span[0], written)
            fresh = set(range(span[0], span[0] + written))
            assert not fresh & there, "no byte is fetched twice"
            there |= fresh
            if count % 2:
                held.append(span)
            else:
                ledger.release(span)
        assert ledger.done_bytes == len(there)
        assert ledger.prefix() == next((number for number in range(size) if number not in there), size)
        for span in held:
            ledger.release(span)
        again = PieceLedger.read(descriptor)
        assert again is not None
        while (span := again.claim(2)) is not None:
            assert not set(range(*span)) & there
            again.advance(span[0], span[1] - span[0])
            again.release(span)
        assert again.is_whole
        assert again.prefix() == size
        assert again.open_pieces == 0
        again.close()


@given(SIZES, PIECES, st.binary(max_size=64), st.integers(0, 6000))
def test_a_damaged_ledger_is_bounded(size: int, piece_bytes: int, damage: bytes, offset: int) -> None:
    with a_ledger(size, piece_bytes) as (_, descriptor):
        length = os.fstat(descriptor).st_size
        os.pwrite(descriptor, damage[: max(0, length - offset)], offset)
        ledger = PieceLedger.read(descriptor)
        if ledger is None:
            return
        try:
            assert 0 <= ledger.done_bytes <= ledger.size
            assert 0 <= ledger.prefix() <= ledger.size
            span = ledger.claim(4)
            assert ledger.is_whole if span is None else span[0] < span[1] <= ledger.size
        finally:
            ledger.close()


@given(SIZES, PIECES, ASCII, ASCII, ASCII)
def test_facts_survive_the_disk(size: int, piece_bytes: int, boot: str, identity: str, validator: str) -> None:
    written = facts(size, piece_bytes, boot=boot, identity=identity, validator=validator)

    assert LedgerFacts.unpacked(written.packed()) == written


@given(st.binary(max_size=600))
def test_no_bytes_are_mistaken_for_facts(data: bytes) -> None:
    assert LedgerFacts.unpacked(data) is None or data.startswith(b"corral01")


def test_a_ledger_goes_with_its_bytes(tmp_path: Path) -> None:
    with PartialFolder(tmp_path) as folder, PartialFile(folder, "model") as part:
        ledger = part.new_ledger(facts(1000, 100))
        ledger.advance(0, 150 - 50)
        ledger.close()
        assert os.fstat(part.descriptor).st_size == 1000
        again = part.read_ledger()
        assert again is not None
        assert again.done_bytes == 100
        again.close()
        os.ftruncate(part.descriptor, 999)
        assert part.read_ledger() is None


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    with PartialFolder(tmp_path) as folder, PartialFile(folder, "model") as first:
        assert first.try_lock()
        with PartialFile(folder, "model") as second:
            assert not second.try_lock()
        assert folder.sweep(before=2**40) == 0, "somebody works on it"
        first.remove()
        assert not first.is_current()


def test_links_among_partial_files_are_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    with PartialFolder(tmp_path) as folder:
        (tmp_path / ".corral" / "partial" / f"{key_of('model')}.part").symlink_to(victim)
        try:
            PartialFile(folder, "model")
        except OSError:
            pass
        else:
            raise AssertionError("the link was followed")
    assert victim.read_bytes() == b"precious"
