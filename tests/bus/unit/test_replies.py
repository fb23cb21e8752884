"""Whoever is asked learns where its own answer goes, and nothing about where others send theirs."""

from datetime import timedelta

import pytest

from corral.base.errors import BusTimeout
from corral.bus.replies import Replies


async def _tokens(replies: Replies, count: int) -> set[str]:
    """What tells this many questions apart, as those who are asked see it."""
    seen: list[str] = []

    async def send(reply_to: str) -> None:
        seen.append(reply_to)

    for _ in range(count):
        with pytest.raises(BusTimeout):
            await replies.ask("nodes.w.x", send, timeout=timedelta(0))
    assert len(set(seen)) == count
    return {subject.rpartition(".")[2] for subject in seen}


async def test_no_question_tells_where_another_one_is_answered() -> None:
    """Every worker may publish to inboxes: with numbers in a row, one that was asked could answer for the others."""
    assert not await _tokens(Replies("_INBOX"), 20) & await _tokens(Replies("_INBOX"), 20)
