"""HTTP/2 against an independent implementation of its server side (h2), and against peers that do not keep to it."""

import asyncio
import itertools
import struct
from datetime import timedelta

import h2.events
import h2.settings
import pytest

from corral.rpc.grpc_client import MAX_MESSAGE_BYTES, NO_KEEPALIVE, Call, Code, Status, frames
from corral.rpc.grpc_client.connection import Http2Connection
from corral.rpc.grpc_client.frames import FrameReader, ProtocolViolated, frame
from corral.rpc.grpc_client.open_calls import CALL_WINDOW
from tests.kit.http2_peer import OPENING, SUCCESS, Http2Peer, Http2Transport, RawPeer, message
from tests.kit.loop_time import let_loop_time_pass


@pytest.fixture
async def peer() -> Http2Peer:
    return Http2Peer()


async def read(stream: Call) -> list[bytes]:
    contents = []
    while (content := await stream.next()) is not None:
        contents.append(content)
    return contents


async def test_a_call_is_understood_and_its_answer_too(peer: Http2Peer) -> None:
    stream = peer.call(b"hello")
    [request] = peer.heard(h2.events.RequestReceived)
    assert dict(request.headers)[b":method"] == b"POST"
    assert peer.body_of(stream) == message(b"hello")
    peer.answer(stream, b"one", b"", b"three")
    peer.speak()
    assert await read(stream) == [b"one", b"", b"three"]
    assert stream.status == Status(Code.OK)


async def test_it_does_not_matter_where_the_bytes_are_split() -> None:
    for pieces_of in range(1, 80):
        peer = Http2Peer()
        first, second = peer.call(), peer.call()
        peer.answer(first, b"one", b"two")
        peer.answer(second, b"three" * 10, trailers=[("grpc-status", "5"), ("grpc-message", "not%20there %E2%82%AC")])
        peer.speak(pieces_of)
        assert await read(first) == [b"one", b"two"]
        assert await read(second) == [b"three" * 10]
        assert second.status == Status(Code.NOT_FOUND, "not there €")


async def test_messages_may_be_cut_into_frames_at_will(peer: Http2Peer) -> None:
    stream = peer.call()
    peer.http.send_headers(stream.number, OPENING)
    data = message(b"a" * 7) + message(b"b" * 9) + message(b"")
    for begin, end in itertools.pairwise([0, 1, 5, 12, 13, 20, len(data)]):
        peer.http.send_data(stream.number, data[begin:end], pad_length=begin)
    peer.http.send_headers(stream.number, SUCCESS, end_stream=True)
    peer.speak()
    assert await read(stream) == [b"a" * 7, b"b" * 9, b""]


async def test_a_large_request_keeps_to_the_windows_of_its_peer(peer: Http2Peer) -> None:
    body = bytes(range(256)) * 2000
    stream = peer.call(body)
    while len(peer.body_of(stream)) < len(message(body)):
        fresh = peer.heard(h2.events.DataReceived)
        peer.events.clear()
        assert fresh
        for event in fresh:
            peer.http.acknowledge_received_data(event.flow_controlled_length, stream.number)
        kept = b"".join(event.data for event in fresh)
        peer.speak()
        peer.events.insert(0, h2.events.DataReceived(stream_id=stream.number, data=kept, flow_controlled_length=0))
    assert peer.body_of(stream) == message(body)
    assert peer.heard(h2.events.StreamEnded)


async def test_a_window_that_shrinks_below_nothing_is_waited_out(peer: Http2Peer) -> None:
    stream = peer.call(b"x" * 200_000)
    sent = len(peer.body_of(stream))
    assert sent == 65_535
    peer.http.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 10})
    peer.speak()
    peer.http.increment_flow_control_window(200_000)
    peer.speak()
    assert len(peer.body_of(stream)) == sent
    peer.http.increment_flow_control_window(200_000, stream.number)
    peer.speak()
    assert len(peer.body_of(stream)) == 200_005


async def test_a_slow_consumer_holds_back_its_own_backend_only(peer: Http2Peer) -> None:
    slow, quick = peer.call(), peer.call()
    for stream in (slow, quick):
        peer.http.send_headers(stream.number, OPENING)
    sent = 0
    while peer.http.local_flow_control_window(slow.number) >= 1005:
        peer.http.send_data(slow.number, message(b"s" * 1000))
        peer.speak()
        sent += 1
    assert sent * 1005 + 1005 > CALL_WINDOW
    peer.http.send_data(quick.number, message(b"q"))
    peer.speak()
    assert await quick.next() == b"q"
    for _ in range(sent):
        assert await slow.next() == b"s" * 1000
    assert peer.http.local_flow_control_window(slow.number) >= CALL_WINDOW // 2


async def test_a_message_larger_than_the_window_comes_whole(peer: Http2Peer) -> None:
    stream = peer.call()
    content = b"y" * (3 * CALL_WINDOW)
    peer.http.send_headers(stream.number, OPENING)
    data = memoryview(message(content))
    while data:
        count = min(len(data), peer.http.local_flow_control_window(stream.number), 65_536)
        assert count > 0
        peer.http.send_data(stream.number, bytes(data[:count]))
        data = data[count:]
        peer.speak()
    assert await stream.next() == content


async def test_more_than_the_window_ends_the_connection(peer: Http2Peer) -> None:
    stream = peer.call()
    peer.http.send_headers(stream.number, OPENING)
    peer.speak()
    for _ in range(CALL_WINDOW // 60_000 + 1):
        peer.connection.data_received(frame(frames.DATA, 0, stream.number, message(b"z" * 60_000)))
    assert stream.status == Status(Code.UNAVAILABLE, "it breaks HTTP/2: it sends more than it may")
    assert peer.wire.closed


async def test_after_a_farewell_what_was_begun_goes_on(peer: Http2Peer) -> None:
    begun, late = peer.call(), peer.call()
    peer.connection.data_received(frame(frames.GOAWAY, 0, 0, struct.pack(">LL", begun.number, 2) + b"tired"))
    assert not peer.connection.takes_calls
    assert late.status == Status(Code.UNAVAILABLE, "the server takes no more calls (code 2: tired)")
    assert late.was_refused
    assert not begun.was_refused
    assert not peer.wire.closed
    peer.answer(begun, b"still")
    peer.speak()
    assert await read(begun) == [b"still"]
    assert begun.status == Status(Code.OK)
    assert peer.wire.closed


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (frames.REFUSED_STREAM, Code.UNAVAILABLE),
        (frames.CANCEL, Code.CANCELLED),
        (frames.ENHANCE_YOUR_CALM, Code.UNAVAILABLE),
        (frames.INADEQUATE_SECURITY, Code.PERMISSION_DENIED),
        (frames.NO_ERROR, Code.INTERNAL),
        (99, Code.INTERNAL),
    ],
)
async def test_a_reset_is_told_by_its_code(peer: Http2Peer, code: int, expected: Code) -> None:
    stream = peer.call()
    peer.connection.data_received(frames.reset(stream.number, code))
    assert await read(stream) == []
    assert stream.status is not None
    assert stream.status.code is expected
    assert stream.was_refused == (code == frames.REFUSED_STREAM)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ([(":status", "503")], Code.UNAVAILABLE),
        ([(":status", "404")], Code.UNIMPLEMENTED),
        ([(":status", "401")], Code.UNAUTHENTICATED),
        ([(":status", "302")], Code.UNKNOWN),
        ([(":status", "200"), ("content-type", "text/html")], Code.UNKNOWN),
        ([(":status", "200")], Code.UNKNOWN),
    ],
)
async def test_an_answer_that_is_not_grpcs_ends_the_call(
    peer: Http2Peer, head: list[tuple[str, str]], expected: Code
) -> None:
    stream = peer.call()
    peer.http.send_headers(stream.number, head)
    peer.speak()
    assert await read(stream) == []
    assert stream.status is not None
    assert stream.status.code is expected
    assert [event.error_code for event in peer.heard(h2.events.StreamReset)] == [frames.CANCEL]


@pytest.mark.parametrize(
    ("trailers", "expected"),
    [
        (
            [("grpc-status", "9"), ("grpc-message", "model not loaded")],
            Status(Code.FAILED_PRECONDITION, "model not loaded"),
        ),
        ([("grpc-status", "77")], Status(Code.UNKNOWN)),
        ([("grpc-status", "x"), ("grpc-message", "%zz%ff")], Status(Code.UNKNOWN, "%zz\N{REPLACEMENT CHARACTER}")),
        ([("other", "1")], Status(Code.UNKNOWN, "the stream ended without a status")),
    ],
)
async def test_the_end_is_read_from_the_trailers(
    peer: Http2Peer, trailers: list[tuple[str, str]], expected: Status
) -> None:
    stream = peer.call()
    peer.answer(stream, trailers=trailers)
    peer.speak()
    assert await read(stream) == []
    assert stream.status == expected


async def test_an_answer_may_be_trailers_only(peer: Http2Peer) -> None:
    stream = peer.call()
    peer.http.send_headers(stream.number, [*OPENING, ("grpc-status", "12")], end_stream=True)
    peer.speak()
    assert await read(stream) == []
    assert stream.status == Status(Code.UNIMPLEMENTED)


async def test_an_interim_answer_is_passed_over(peer: Http2Peer) -> None:
    stream = peer.call()
    peer.http.send_headers(stream.number, [(":status", "103")])
    peer.answer(stream, b"one")
    peer.speak()
    assert await read(stream) == [b"one"]


async def test_data_that_ends_without_trailers_is_no_success(peer: Http2Peer) -> None:
    stream = peer.call()
    peer.http.send_headers(stream.number, OPENING)
    peer.http.send_data(stream.number, message(b"one"), end_stream=True)
    peer.speak()
    assert await read(stream) == [b"one"]
    assert stream.status == Status(Code.INTERNAL, "the stream ended without a status")


async def test_an_end_within_a_message_is_no_success(peer: Http2Peer) -> None:
    stream = peer.call()
    peer.http.send_headers(stream.number, OPENING)
    peer.http.send_data(stream.number, message(b"one") + message(b"two")[:-1])
    peer.http.send_headers(stream.number, SUCCESS, end_stream=True)
    peer.speak()
    assert await read(stream) == [b"one"]
    assert stream.status == Status(Code.INTERNAL, "the stream ended within a message")


async def test_data_without_a_head_is_no_answer(peer: Http2Peer) -> None:
    stream = peer.call()
    peer.connection.data_received(frame(frames.DATA, 0, stream.number, message(b"one")))
    assert await read(stream) == []
    assert stream.status == Status(Code.INTERNAL, "data came before the headers")


async def test_a_call_that_was_answered_is_not_refused_any_more(peer: Http2Peer) -> None:
    stream = peer.call()
    peer.http.send_headers(stream.number, OPENING)
    peer.http.send_data(stream.number, message(b"one"))
    peer.speak()
    peer.connection.data_received(frames.reset(stream.number, frames.REFUSED_STREAM))
    assert await read(stream) == [b"one"]
    assert not stream.was_refused


async def test_a_long_text_of_an_error_harms_no_other_call(peer: Http2Peer) -> None:
    failing, other = peer.call(), peer.call()
    peer.answer(failing, trailers=[("grpc-status", "13"), ("grpc-message", "e" * 70_000)])
    peer.speak()
    assert await read(failing) == []
    assert failing.status == Status(Code.INTERNAL, "e" * 8192)
    peer.answer(other, b"fine")
    peer.speak()
    assert await read(other) == [b"fine"]


async def test_a_window_as_large_as_can_be_is_kept_account_of() -> None:
    peer = RawPeer()
    peer.connection.data_received(frames.settings({frames.INITIAL_WINDOW_SIZE: frames.MAX_NUMBER}))
    stream = peer.call(b"x" * 100)
    peer.connection.data_received(frames.window_update(stream.number, 105))
    assert stream.status is None


async def test_what_came_before_a_fault_counts(peer: Http2Peer) -> None:
    stream = peer.call()
    peer.answer(stream, b"whole")
    peer.connection.data_received(peer.http.data_to_send() + b"\xff\xff\xff" + bytes(6))
    assert await read(stream) == [b"whole"]
    assert stream.status == Status(Code.OK)
    assert not peer.connection.takes_calls


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        (b"\1\0\0\0\1x", Code.INTERNAL),
        (b"\0" + (MAX_MESSAGE_BYTES + 1).to_bytes(4), Code.RESOURCE_EXHAUSTED),
    ],
)
async def test_a_message_that_cannot_be_taken_ends_its_call(peer: Http2Peer, prefix: bytes, expected: Code) -> None:
    stream, other = peer.call(), peer.call()
    peer.http.send_headers(stream.number, OPENING)
    peer.http.send_data(stream.number, message(b"good") + prefix)
    peer.speak()
    assert await read(stream) == [b"good"]
    assert stream.status is not None
    assert stream.status.code is expected
    assert [event.stream_id for event in peer.heard(h2.events.StreamReset)] == [stream.number]
    assert other.status is None


async def test_a_call_that_is_given_up_is_reset_and_what_still_comes_is_passed_over(peer: Http2Peer) -> None:
    given_up = peer.call()
    late = peer.http
    late.send_headers(given_up.number, OPENING)
    late.send_data(given_up.number, message(b"late"))
    given_up.cancel()
    assert [event.error_code for event in peer.heard(h2.events.StreamReset)] == [frames.CANCEL]
    peer.connection.data_received(frame(frames.DATA, 0, given_up.number, message(b"later")))
    stream = peer.call()
    peer.answer(stream, b"fine")
    peer.speak()
    assert await read(stream) == [b"fine"]


async def test_a_deadline_ends_the_call(peer: Http2Peer) -> None:
    stream = peer.call()
    stream.fail_at(asyncio.get_running_loop().time() + 60, Status(Code.DEADLINE_EXCEEDED, "late"))
    reading = asyncio.create_task(read(stream))
    await asyncio.sleep(0)
    let_loop_time_pass(timedelta(seconds=60))
    assert await reading == []
    assert stream.status == Status(Code.DEADLINE_EXCEEDED, "late")
    assert peer.heard(h2.events.StreamReset)


async def test_a_reset_at_the_deadline_is_the_deadlines(peer: Http2Peer) -> None:
    """A server may notice it first, and says no more than that."""
    stream = peer.call()
    loop = asyncio.get_running_loop()
    stream.fail_at(loop.time() + 60, Status(Code.DEADLINE_EXCEEDED, "late"))
    let_loop_time_pass(timedelta(seconds=60))
    peer.connection.data_received(frames.reset(stream.number, frames.CANCEL))
    assert stream.status == Status(Code.DEADLINE_EXCEEDED, "late")


async def test_a_full_connection_is_waited_for() -> None:
    peer = Http2Peer(max_concurrent_streams=1)
    stream = peer.call()
    assert peer.connection.places.is_full
    waiting = [asyncio.create_task(peer.connection.places.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    peer.answer(stream)
    peer.speak()
    await waiting[0]
    assert not waiting[1].done()
    peer.connection.connection_lost(None)
    await waiting[1]


async def test_a_farewell_wakes_those_who_wait_for_room() -> None:
    """They are better off with another connection, although a stream still goes on here."""
    peer = Http2Peer(max_concurrent_streams=1)
    peer.call()
    waiting = [asyncio.create_task(peer.connection.places.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    peer.connection.data_received(frame(frames.GOAWAY, 0, 0, struct.pack(">LL", frames.MAX_NUMBER, 0)))
    await asyncio.gather(*waiting)
    assert not peer.connection.takes_calls


async def test_nobody_waits_for_room_on_a_connection_that_has_ended(peer: Http2Peer) -> None:
    peer.connection.connection_lost(None)
    waiting = asyncio.create_task(peer.connection.places.wait())
    await asyncio.sleep(0)
    assert waiting.done()
    await waiting


async def test_nobody_overtakes_those_who_wait_for_room() -> None:
    peer = Http2Peer(max_concurrent_streams=2)
    streams = [peer.call(), peer.call()]
    waiting = [asyncio.create_task(peer.connection.places.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    for stream in streams:
        peer.answer(stream)
    peer.speak()
    assert peer.connection.places.is_full
    await asyncio.wait(waiting[:2])
    assert [task.done() for task in waiting] == [True, True, False]
    waiting[2].cancel()
    await asyncio.wait({waiting[2]})
    assert not peer.connection.places.is_full
    assert not peer.connection.places._waiting


async def test_room_that_a_cancelled_one_was_given_goes_to_the_next() -> None:
    peer = Http2Peer(max_concurrent_streams=1)
    stream = peer.call()
    first, second = (asyncio.create_task(peer.connection.places.wait()) for _ in range(2))
    await asyncio.sleep(0)
    peer.answer(stream)
    peer.speak()
    first.cancel()
    await asyncio.wait({first, second})
    assert first.cancelled()
    assert not second.cancelled()


async def test_pings_are_answered(peer: Http2Peer) -> None:
    peer.http.ping(b"12345678")
    peer.speak()
    assert [event.ping_data for event in peer.heard(h2.events.PingAckReceived)] == [b"12345678"]


async def test_headers_may_go_on_in_further_frames(peer: Http2Peer) -> None:
    stream = peer.call()
    peer.http.send_headers(stream.number, [*OPENING, *((f"x-{number}", "v" * 900) for number in range(40))])
    peer.http.send_headers(stream.number, SUCCESS, end_stream=True)
    peer.speak()
    assert await read(stream) == []
    assert stream.status == Status(Code.OK)


async def test_a_lost_connection_ends_all_calls(peer: Http2Peer) -> None:
    streams = [peer.call() for _ in range(3)]
    peer.connection.connection_lost(ConnectionResetError(104, "Connection reset by peer"))
    assert {stream.status for stream in streams} == {Status(Code.UNAVAILABLE, "[Errno 104] Connection reset by peer")}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "it does not speak HTTP/2 but HTTP/1"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "it does not speak HTTP/2: its first bytes are b'SSH-2.0-O'"),
        (frame(frames.PING, 0, 0, b"12345678"), "it does not speak HTTP/2: its first frame is not its settings"),
    ],
)
@pytest.mark.parametrize("pieces_of", [1, 5, 100])
async def test_a_peer_that_does_not_begin_with_settings_is_none(said: bytes, told: str, pieces_of: int) -> None:
    connection = Http2Connection(NO_KEEPALIVE)
    wire = Http2Transport(connection, lambda _: None)
    connection.connection_made(wire)  # type: ignore[arg-type]
    for begin in range(0, len(said), pieces_of):
        connection.data_received(said[begin : begin + pieces_of])
    assert connection.greeted.done()
    assert not connection.takes_calls
    assert connection.why_closed == told
    assert wire.closed


async def test_a_peer_that_hangs_up_at_once_has_not_spoken_http2() -> None:
    connection = Http2Connection(NO_KEEPALIVE)
    connection.connection_made(Http2Transport(connection, lambda _: None))  # type: ignore[arg-type]
    connection.eof_received()
    assert connection.why_closed == "it closed the connection before any HTTP/2"


@pytest.mark.parametrize(
    "said",
    [
        frame(frames.HEADERS, 0, 1, b"\x88") + frame(frames.DATA, 0, 1, b""),
        frame(frames.CONTINUATION, frames.END_HEADERS, 1, b"\x88"),
        frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"),
        frame(frames.HEADERS, frames.END_HEADERS, 7, b"\x88"),
        frame(frames.HEADERS, frames.END_HEADERS, 2, b"\x88"),
        frame(frames.DATA, 0x8, 1, b"\x09abc"),
        frame(frames.DATA, 0x8, 1, b""),
        frame(frames.PUSH_PROMISE, 0, 1, b"\0\0\0\2"),
        frame(frames.SETTINGS, 0, 0, b"12345"),
        frames.settings({frames.MAX_FRAME_SIZE: 1}),
        frames.settings({frames.INITIAL_WINDOW_SIZE: 2**31}),
        frames.window_update(0, frames.MAX_NUMBER),
        frames.window_update(1, frames.MAX_NUMBER),
        frame(frames.RST_STREAM, 0, 1, b"12"),
        frame(frames.GOAWAY, 0, 0, b"1234567"),
        frame(frames.PING, 0, 0, b"1234567"),
        frames.window_update(3, 1),
        frames.reset(2, frames.CANCEL),
        frame(frames.HEADERS, 0, 1, b"") + frame(frames.CONTINUATION, 0, 1, b"x" * 60_000) * 70,
        b"\xff\xff\xff" + bytes(6),
    ],
)
async def test_whoever_breaks_the_rules_is_left(peer: Http2Peer, said: bytes) -> None:
    stream = peer.call()
    peer.connection.data_received(said)
    assert stream.status is not None
    assert stream.status.code is Code.UNAVAILABLE
    assert stream.status.details.startswith("it breaks HTTP/2: ")
    assert peer.wire.closed


def test_a_frame_longer_than_allowed_is_refused_by_its_head() -> None:
    with pytest.raises(ProtocolViolated):
        list(FrameReader(10).feed(frame(frames.DATA, 0, 1, b"x" * 11)[:9]))
