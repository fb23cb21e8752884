"""Streams of requests against h2's windows: who waits, for what, and what ends the waiting."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import h2.events
import pytest

from corral.rpc.grpc_client import MAX_MESSAGE_BYTES, Call, CallFailed, Code, Status, frames, open_calls
from corral.rpc.grpc_client.frames import FrameReader, frame
from tests.kit.http2_peer import OPENING, Http2Peer, RawPeer, message
from tests.kit.loop_time import let_loop_time_pass

FIRST_WINDOW = 65_535
BUFFER = 1024 * 1024


@pytest.fixture
async def peer() -> Http2Peer:
    return Http2Peer()


async def stalled(peer: Http2Peer) -> tuple[Call, "asyncio.Task[bool]"]:
    """A call whose sender waits in the middle of a message."""
    call = peer.stream()
    sending = asyncio.create_task(call.send(b"x" * 100_000))
    await asyncio.sleep(0)
    assert len(peer.body_of(call)) == FIRST_WINDOW
    assert not sending.done()
    return call, sending


async def test_messages_arrive_in_order_and_the_half_close_after_them(peer: Http2Peer) -> None:
    call = peer.stream()
    assert await call.send(b"one")
    assert await call.send(b"")
    assert not peer.heard(h2.events.StreamEnded)
    call.done_sending()
    assert peer.body_of(call) == message(b"one") + message(b"")
    assert peer.heard(h2.events.StreamEnded)
    peer.answer(call, b"both")
    peer.speak()
    assert await call.next() == b"both"
    assert await call.next() is None
    assert call.status == Status(Code.OK)


async def test_a_stream_of_no_requests_is_one_too(peer: Http2Peer) -> None:
    call = peer.stream()
    call.done_sending()
    call.done_sending()
    assert len(peer.heard(h2.events.StreamEnded)) == 1
    peer.answer(call)
    peer.speak()
    assert await call.next() is None


async def test_answers_come_while_requests_go_on(peer: Http2Peer) -> None:
    call = peer.stream()
    peer.http.send_headers(call.number, OPENING)
    for number in range(5):
        assert await call.send(b"question %d" % number)
        peer.http.send_data(call.number, message(b"answer %d" % number))
        peer.speak()
        assert await call.next() == b"answer %d" % number


async def test_a_stalled_peer_blocks_the_sender_until_it_gives_room(peer: Http2Peer) -> None:
    call, sending = await stalled(peer)
    peer.allow(call, 34_469)
    await asyncio.sleep(0)
    assert not sending.done()
    peer.allow(call, 1)
    assert await sending
    assert peer.body_of(call) == message(b"x" * 100_000)


async def test_a_socket_that_takes_no_more_blocks_the_sender(peer: Http2Peer) -> None:
    call = peer.stream()
    peer.allow(call, 2**30)
    peer.wire.is_stuck = True
    sent = 0
    while peer.wire.get_write_buffer_size() <= BUFFER:
        assert await call.send(b"y" * 10_000)
        sent += 1
    buffered = peer.wire.get_write_buffer_size()
    sending = asyncio.create_task(call.send(b"z" * 10_000_000))
    other = peer.call(b"w" * 5000)
    await asyncio.sleep(0)
    assert peer.wire.get_write_buffer_size() - buffered < 100  # only the head of the other call
    assert not sending.done()
    peer.wire.unstick()
    assert await sending
    assert len(peer.body_of(call)) == sent * 10_005 + 10_000_005
    assert len(peer.body_of(other)) == 5005


async def test_frames_stay_small_for_a_peer_that_allows_huge_ones() -> None:
    peer = RawPeer()
    settings = {frames.MAX_FRAME_SIZE: frames.MAX_FRAME_LIMIT, frames.INITIAL_WINDOW_SIZE: 2**30}
    peer.connection.data_received(frames.settings(settings) + frames.window_update(0, 2**30))
    call = peer.call(bytes(10_000_000))
    assert call.unsent is None
    sizes = [len(read.payload) for read in FrameReader(2**24).feed(bytes(peer.sent)) if read.kind == frames.DATA]
    assert sum(sizes) == 10_000_005
    assert max(sizes) == 65_536


async def test_a_peer_that_asks_and_never_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers to its pings would pile up without end."""
    monkeypatch.setattr(open_calls, "_BUFFER_BYTES", 10_000)
    monkeypatch.setattr(open_calls, "_MAX_BACKLOG_BYTES", 40_000)
    peer = RawPeer()
    call = peer.call()
    peer.wire.is_stuck = True
    for _ in range(3000):
        peer.connection.data_received(frame(frames.PING, 0, 0, bytes(8)))
    assert 40_000 < peer.wire.get_write_buffer_size() < 40_100
    assert call.status == Status(Code.UNAVAILABLE, "it does not read what is sent to it")


async def test_senders_take_turns_with_the_window_that_they_share(peer: Http2Peer) -> None:
    calls = [peer.stream() for _ in range(3)]
    sending = [asyncio.create_task(call.send(b"x" * 60_000)) for call in calls]
    await asyncio.sleep(0)
    before = [len(peer.body_of(call)) for call in calls]
    peer.http.increment_flow_control_window(3 * 16_384)
    peer.speak()
    after = [len(peer.body_of(call)) for call in calls]
    assert sum(after) - sum(before) == 3 * 16_384
    assert all(later > earlier for earlier, later in zip(before, after, strict=True) if earlier < 60_005)
    peer.http.increment_flow_control_window(200_000)
    peer.speak()
    assert await asyncio.gather(*sending) == [True] * 3


def early_answer(peer: Http2Peer, call: Call) -> None:
    peer.answer(call, b"enough")
    peer.speak()


def early_error(peer: Http2Peer, call: Call) -> None:
    peer.http.send_headers(call.number, [*OPENING, ("grpc-status", "3")], end_stream=True)
    peer.speak()


def reset(peer: Http2Peer, call: Call) -> None:
    peer.connection.data_received(frames.reset(call.number, frames.CANCEL))


def refusal(peer: Http2Peer, call: Call) -> None:
    peer.connection.data_received(frame(frames.GOAWAY, 0, 0, bytes(8)))


def loss(peer: Http2Peer, call: Call) -> None:
    peer.connection.connection_lost(None)


@pytest.mark.parametrize(
    ("end", "code", "answers"),
    [
        (early_answer, Code.OK, [b"enough"]),
        (early_error, Code.INVALID_ARGUMENT, []),
        (reset, Code.CANCELLED, []),
        (refusal, Code.UNAVAILABLE, []),
        (loss, Code.UNAVAILABLE, []),
    ],
)
async def test_an_end_by_the_server_stops_the_sender(
    peer: Http2Peer, end: Callable[[Http2Peer, Call], None], code: Code, answers: list[bytes]
) -> None:
    call, sending = await stalled(peer)
    end(peer, call)
    assert not await sending
    assert not await call.send(b"more")
    call.done_sending()
    assert [message async for message in rest(call)] == answers
    assert call.status is not None
    assert call.status.code is code
    assert call.unsent is None
    resets = [event.error_code for event in peer.heard(h2.events.StreamReset)]
    assert resets == ([frames.NO_ERROR] if end in (early_answer, early_error) else [])


async def rest(call: Call):  # type: ignore[no-untyped-def]
    while (message := await call.next()) is not None:
        yield message


async def test_an_early_answer_between_messages_closes_the_stream_on_both_sides(peer: Http2Peer) -> None:
    call = peer.stream()
    assert await call.send(b"one")
    early_answer(peer, call)
    assert [event.error_code for event in peer.heard(h2.events.StreamReset)] == [frames.NO_ERROR]
    assert peer.http.open_inbound_streams == 0


async def test_a_cancelled_send_cancels_the_call(peer: Http2Peer) -> None:
    call, sending = await stalled(peer)
    sending.cancel()
    await asyncio.wait({sending})
    assert sending.cancelled()
    assert call.status == Status(Code.CANCELLED, "given up")
    assert call.unsent is None
    assert [event.error_code for event in peer.heard(h2.events.StreamReset)] == [frames.CANCEL]
    peer.http.increment_flow_control_window(100_000)
    peer.speak()
    assert len(peer.body_of(call)) == FIRST_WINDOW


async def test_a_cancelled_reader_loses_no_message(peer: Http2Peer) -> None:
    call = peer.stream()
    reading = asyncio.create_task(call.next())
    await asyncio.sleep(0)
    peer.http.send_headers(call.number, OPENING)
    peer.http.send_data(call.number, message(b"one"))
    peer.speak()
    reading.cancel()  # woken already, but it has not run yet
    await asyncio.wait({reading})
    assert reading.cancelled()
    assert await call.next() == b"one"


async def test_leaving_the_block_of_a_call_wakes_its_sender(peer: Http2Peer) -> None:
    call, sending = await stalled(peer)
    with call:
        pass
    assert not await sending


async def test_a_deadline_ends_the_waiting_of_a_sender(peer: Http2Peer) -> None:
    call, sending = await stalled(peer)
    call.fail_at(asyncio.get_running_loop().time() + 60, Status(Code.DEADLINE_EXCEEDED, "late"))
    let_loop_time_pass(timedelta(seconds=60))
    assert not await sending
    assert call.status == Status(Code.DEADLINE_EXCEEDED, "late")


async def test_one_sender_at_a_time_and_none_after_the_half_close(peer: Http2Peer) -> None:
    call, sending = await stalled(peer)
    with pytest.raises(RuntimeError, match="another message is being sent"):
        await call.send(b"two")
    with pytest.raises(RuntimeError, match="still being sent"):
        call.done_sending()
    peer.allow(call, 100_000)
    await sending
    call.done_sending()
    with pytest.raises(RuntimeError, match="the requests have ended"):
        await call.send(b"three")


async def test_a_message_that_is_too_large_is_not_begun(peer: Http2Peer) -> None:
    call = peer.stream()
    with pytest.raises(CallFailed, match="larger than max") as failed:
        await call.send(bytes(MAX_MESSAGE_BYTES + 1))
    assert failed.value.status.code is Code.RESOURCE_EXHAUSTED
    assert await call.send(b"small")
    assert peer.body_of(call) == message(b"small")
