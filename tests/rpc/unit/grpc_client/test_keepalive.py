"""Pings: when they are sent, what counts as an answer, and what a missing one ends."""

import asyncio
import itertools
from datetime import timedelta

import h2.events
import pytest

from corral.rpc.grpc_client import Code, Keepalive, Status, frames
from corral.rpc.grpc_client.frames import frame
from tests.kit.http2_peer import OPENING, Http2Peer, message
from tests.kit.loop_time import let_loop_time_pass

KEEPALIVE = Keepalive(interval_seconds=30, timeout_seconds=20, pings_without_data=3, slow_interval_seconds=330)
NO_ANSWER = Status(Code.UNAVAILABLE, "no answer to a ping within 20 s")


@pytest.fixture
async def peer() -> Http2Peer:
    return Http2Peer(KEEPALIVE)


async def wait(seconds: float) -> None:
    """Let the loop's time pass, and the timers run that are due then."""
    let_loop_time_pass(timedelta(seconds=seconds))
    for _ in range(3):
        await asyncio.sleep(0)


def pings(peer: Http2Peer) -> int:
    return len(peer.heard(h2.events.PingReceived))


async def test_a_silent_peer_is_pinged_and_one_that_answers_stays(peer: Http2Peer) -> None:
    call = peer.call()
    await wait(29)
    assert pings(peer) == 0
    await wait(1.1)
    assert pings(peer) == 1
    peer.speak()  # h2 has answered it
    await wait(20.1)
    assert call.status is None
    assert not peer.wire.closed
    call.cancel()


async def test_a_peer_that_does_not_answer_is_given_up(peer: Http2Peer) -> None:
    calls = [peer.call(), peer.stream()]
    await wait(30.1)
    await wait(19.8)
    assert {call.status for call in calls} == {None}
    await wait(0.3)
    assert [call.status for call in calls] == [NO_ANSWER] * 2
    assert not any(call.was_refused for call in calls)
    assert peer.wire.closed
    assert not peer.connection.takes_calls


async def test_a_sender_that_waits_is_woken(peer: Http2Peer) -> None:
    sending = asyncio.create_task(peer.stream().send(bytes(100_000)))
    await asyncio.sleep(0)
    await wait(30.1)
    await wait(20.1)
    assert not await sending


async def test_anything_that_comes_is_an_answer(peer: Http2Peer) -> None:
    call = peer.call()
    await wait(30.1)
    peer.http.send_headers(call.number, OPENING)
    peer.http.clear_outbound_data_buffer()  # with it the answer to the ping
    peer.connection.data_received(frames.window_update(0, 1))
    await wait(20.1)
    assert call.status is None
    call.cancel()


async def test_no_pings_without_calls(peer: Http2Peer) -> None:
    await wait(3000)
    call = peer.call()
    peer.answer(call)
    peer.speak()
    await wait(3000)
    await wait(3000)
    assert pings(peer) == 0
    call = peer.call()
    await wait(29)
    assert pings(peer) == 0
    call.cancel()


async def test_no_pings_while_the_peer_speaks(peer: Http2Peer) -> None:
    call = peer.call()
    peer.http.send_headers(call.number, OPENING)
    for _ in range(10):
        await wait(20)
        peer.http.send_data(call.number, message(b"token"))
        peer.speak()
    assert pings(peer) == 0
    call.cancel()


async def test_a_long_silence_is_pinged_as_seldom_as_servers_demand(peer: Http2Peer) -> None:
    call = peer.call()
    times = []
    for second in range(0, 1000, 5):
        before = pings(peer)
        await wait(5)
        peer.speak()
        times += [second + 5] * (pings(peer) - before)
    assert len(times) == 5
    assert times[:3] == [30, 60, 90] or times[:3] == [35, 65, 95]  # the loop's own time goes on as well
    assert all(330 <= later - earlier <= 340 for earlier, later in itertools.pairwise(times[2:]))
    call.cancel()


@pytest.mark.parametrize("call_by_call", [False, True])
async def test_data_of_the_peer_allows_more_pings_and_calls_without_answers_do_not(call_by_call: bool) -> None:
    peer = Http2Peer(KEEPALIVE)
    call = peer.call()
    for _ in range(3):
        await wait(30.1)
        peer.speak()
        if call_by_call:
            call.cancel()
            call = peer.call()
    assert pings(peer) == 3
    await wait(30.1)
    assert pings(peer) == 3
    peer.http.send_headers(call.number, OPENING)
    peer.speak()
    await wait(30.1)
    assert pings(peer) == 4
    call.cancel()


async def test_a_loop_that_was_held_up_reads_first(peer: Http2Peer) -> None:
    """Our process may have been stopped: the answer is there, but the timer is noticed first."""
    call = peer.call()
    await wait(30.1)
    await wait(500)
    assert call.status is None
    peer.speak()
    await wait(2)
    assert call.status is None
    await wait(330)
    assert pings(peer) == 2
    await wait(500)
    assert call.status is None
    await wait(1.1)
    assert call.status == NO_ANSWER


async def test_pings_go_on_for_calls_after_a_goaway(peer: Http2Peer) -> None:
    call = peer.call()
    peer.connection.data_received(frame(frames.GOAWAY, 0, 0, (2**31 - 1).to_bytes(4) + bytes(4)))
    await wait(30.1)
    assert pings(peer) == 1
    await wait(20.1)
    assert call.status is not None
    assert call.status.code is Code.UNAVAILABLE
