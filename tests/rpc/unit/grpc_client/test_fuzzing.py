"""Whatever a peer sends, calls end, nothing is raised into the event loop, and our side keeps to HTTP/2.

The examples are the same in every run: see the profile in tests/conftest.py.
"""

import asyncio
import itertools
import struct
from dataclasses import dataclass

import h2.settings
from hpack import Encoder
from hypothesis import example, given, settings
from hypothesis import strategies as st

from corral.rpc.grpc_client import Call, Code, frames
from corral.rpc.grpc_client.frames import FrameReader, frame
from tests.kit.http2_peer import OPENING, SUCCESS, Http2Peer, RawPeer, message

NUMBERS = (1, 3, 5)
MAX_DETAILS = 8192


def headers(number: int, fields: list[tuple[str, str]], flags: int = 0) -> bytes:
    """Without a table, so that a block means the same wherever it ends up."""
    encoder = Encoder()
    encoder.header_table_size = 0
    return frame(frames.HEADERS, frames.END_HEADERS | flags, number, encoder.encode(fields, huffman=False))


CONVERSATION = [
    *(headers(number, OPENING) for number in NUMBERS),
    frames.settings({frames.INITIAL_WINDOW_SIZE: 100, frames.MAX_CONCURRENT_STREAMS: 2, frames.MAX_FRAME_SIZE: 20_000}),
    frame(frames.PING, 0, 0, b"12345678"),
    *(frame(frames.DATA, 0, number, message(b"first") + message(b"second")[:7]) for number in NUMBERS),
    frames.window_update(0, 60_000),
    *(frames.window_update(number, 50_000) for number in NUMBERS),
    frame(frames.PING, frames.ACK, 0, bytes(8)),
    *(frame(frames.DATA, 0, number, message(b"second")[7:]) for number in NUMBERS),
    headers(1, SUCCESS, frames.END_STREAM),
    headers(3, [("grpc-status", "5"), ("grpc-message", "not%20there")], frames.END_STREAM),
    frame(frames.GOAWAY, 0, 0, struct.pack(">LL", 5, 0) + b"enough"),
    frames.reset(5, frames.NO_ERROR),
]
"""A server that keeps to the rules, for three calls."""


@dataclass(frozen=True)
class Mutation:
    """A change of a sequence of frames."""

    kind: str
    at: int
    to: int
    bits: int

    def apply(self, sequence: list[bytes]) -> list[bytes]:
        if not sequence:
            return sequence
        at, to = self.at % len(sequence), self.to % len(sequence)
        changed = list(sequence)
        match self.kind:
            case "drop":
                del changed[at]
            case "repeat":
                changed.insert(to, sequence[at])
            case "swap":
                changed[at], changed[to] = changed[to], changed[at]
            case "cut":
                changed[at] = changed[at][: self.to % (len(changed[at]) + 1)]
            case "flip":
                content = bytearray(changed[at])
                if content:
                    content[self.to % len(content)] ^= self.bits
                changed[at] = bytes(content)
        return changed


MUTATIONS = st.lists(
    st.builds(
        Mutation,
        kind=st.sampled_from(["drop", "repeat", "swap", "cut", "flip"]),
        at=st.integers(0, 1000),
        to=st.integers(0, 1000),
        bits=st.integers(1, 255),
    ),
    max_size=6,
)
FRAMES = st.builds(
    frame,
    st.integers(0, 11),
    st.integers(0, 255),
    st.integers(0, 6),
    st.one_of(st.binary(max_size=40), st.just(message(b"said")), st.just(b"\x88"), st.just(struct.pack(">L", 5))),
)


def begin_calls(peer: Http2Peer) -> list[Call]:
    """One of each kind: a small request, a large one, a stream of them."""
    return [peer.call(), peer.call(b"x" * 70_000), peer.stream()]


def tell(peer: Http2Peer, data: bytes, pieces_of: int) -> None:
    for begin in range(0, len(data), pieces_of):
        peer.connection.data_received(data[begin : begin + pieces_of])


async def check_ends(peer: RawPeer, calls: list[Call]) -> None:
    """Every call ends, and what our side has sent is a conversation that HTTP/2 allows."""
    peer.connection.connection_lost(None)
    for call in calls:
        while await call.next() is not None:
            pass
        assert call.status is not None
        assert call.unsent is None
    check_sent(bytes(peer.sent))


def check_sent(sent: bytes) -> None:
    """Whole frames of known kinds; nothing on a stream before its headers, and no content after its end."""
    begun: set[int] = set()
    ended: set[int] = set()
    reader = FrameReader(2**24)
    for read in reader.feed(sent):
        if read.kind == frames.HEADERS:
            assert read.stream % 2
            assert read.stream > max(begun, default=0)
            begun.add(read.stream)
        elif read.kind in (frames.DATA, frames.RST_STREAM):
            assert read.stream in begun
            assert read.stream not in ended or read.kind == frames.RST_STREAM
        else:
            assert read.kind in (frames.SETTINGS, frames.PING, frames.WINDOW_UPDATE)
        if read.kind == frames.RST_STREAM or (read.kind == frames.DATA and read.flags & frames.END_STREAM):
            ended.add(read.stream)
    assert not reader._unread


@given(said=st.lists(st.one_of(FRAMES, st.binary(max_size=30)), max_size=12), pieces_of=st.integers(1, 50))
async def test_no_peer_can_do_worse_than_end_its_calls(said: list[bytes], pieces_of: int) -> None:
    peer = RawPeer()
    calls = begin_calls(peer)
    tell(peer, b"".join(said), pieces_of)
    await check_ends(peer, calls)


@settings(max_examples=200)
@given(mutations=MUTATIONS, pieces_of=st.integers(1, 400))
async def test_a_server_that_goes_wrong_somewhere_ends_its_calls_and_no_more(
    mutations: list[Mutation], pieces_of: int
) -> None:
    peer = RawPeer()
    calls = begin_calls(peer)
    sequence = CONVERSATION
    for mutation in mutations:
        sequence = mutation.apply(sequence)
    sending = asyncio.create_task(calls[2].send(b"y" * 70_000))
    await asyncio.sleep(0)
    tell(peer, b"".join(sequence), pieces_of)
    if not mutations:
        assert [call.status and call.status.code for call in calls] == [Code.OK, Code.NOT_FOUND, Code.INTERNAL]
    await check_ends(peer, calls)
    await sending


@given(block=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=3), is_end=st.booleans())
async def test_any_bytes_as_a_header_block(block: bytes, cuts: list[int], is_end: bool) -> None:
    peer = RawPeer()
    calls = begin_calls(peer)
    edges = [0, *sorted(min(cut, len(block)) for cut in cuts), len(block)]
    pieces = [block[begin:end] for begin, end in itertools.pairwise(edges)]
    for number, piece in enumerate(pieces):
        kind = frames.CONTINUATION if number else frames.HEADERS
        flags = frames.END_HEADERS if number == len(pieces) - 1 else 0
        first = frames.END_STREAM if is_end and not number else 0
        peer.connection.data_received(frame(kind, flags | first, 1, piece))
    await check_ends(peer, calls)


NAMES = st.one_of(
    st.sampled_from(["grpc-status", "grpc-message", ":status", "content-type", "grpc-status-details-bin"]),
    st.text(st.characters(codec="ascii"), max_size=10),
)
VALUES = st.one_of(
    st.sampled_from(["0", "16", "17", "-1", "1e3", "200", "%", "%E2%82", "application/grpc", "e" * 9000]),
    st.text(max_size=40),
)


@given(fields=st.lists(st.tuples(NAMES, VALUES), max_size=6), has_head=st.booleans())
async def test_any_trailers_end_the_call_with_a_status_of_bounded_length(
    fields: list[tuple[str, str]], has_head: bool
) -> None:
    peer = RawPeer()
    calls = begin_calls(peer)
    if has_head:
        peer.connection.data_received(headers(1, OPENING))
    peer.connection.data_received(headers(1, fields, frames.END_STREAM))
    status = calls[0].status
    assert status is not None
    assert isinstance(status.code, Code)
    assert len(status.details) <= MAX_DETAILS
    assert calls[1].status is None
    await check_ends(peer, calls)


@given(
    contents=st.lists(st.binary(max_size=300), max_size=8),
    cuts=st.lists(st.integers(0, 3000), max_size=12),
    pads=st.lists(st.integers(0, 20), min_size=13, max_size=13),
)
async def test_messages_are_read_as_they_were_written_however_they_are_cut(
    contents: list[bytes], cuts: list[int], pads: list[int]
) -> None:
    peer = Http2Peer()
    call = peer.call()
    data = b"".join(map(message, contents))
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    peer.http.send_headers(call.number, OPENING)
    for begin, end, pad in zip(edges, edges[1:], pads, strict=False):
        peer.http.send_data(call.number, data[begin:end], pad_length=pad)
    peer.http.send_headers(call.number, SUCCESS, end_stream=True)
    peer.speak()
    assert [await call.next() for _ in contents] == contents
    assert await call.next() is None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("allow"), st.integers(1, 100_000)),
        st.tuples(st.just("allow call"), st.integers(1, 100_000)),
        st.tuples(st.just("resize"), st.integers(0, 100_000)),
        st.tuples(st.just("frame size"), st.integers(16_384, 50_000)),
        st.tuples(st.sampled_from(["stick", "unstick"]), st.just(0)),
    ),
    max_size=20,
)


@example(sizes=[65531], steps=[("allow", 1), ("stick", 0), ("frame size", 16384), ("allow call", 1), ("resize", 0)])
@given(sizes=st.lists(st.integers(0, 200_000), min_size=1, max_size=4), steps=STEPS)
async def test_requests_arrive_whole_whatever_the_windows_do(sizes: list[int], steps: list[tuple[str, int]]) -> None:
    """h2 refuses a byte beyond a window, so all that is left to see is that they arrive."""
    peer = Http2Peer()
    call = peer.stream()
    contents = [bytes([number]) * size for number, size in enumerate(sizes)]

    async def send_all() -> None:
        for content in contents:
            assert await call.send(content)
        call.done_sending()

    sending = asyncio.create_task(send_all())
    for step, value in steps:
        await asyncio.sleep(0)
        take(peer, call, step, value)
    take(peer, call, "unstick", 0)
    while not sending.done():
        peer.allow(call, 1_000_000)
        await asyncio.sleep(0)
    await sending
    assert peer.body_of(call) == b"".join(map(message, contents))


def take(peer: Http2Peer, call: Call, step: str, value: int) -> None:
    """One thing that the other end or the socket does."""
    match step:
        case "allow":
            peer.http.increment_flow_control_window(value)
        case "allow call":
            peer.http.increment_flow_control_window(value, call.number)
        case "resize":
            peer.change_setting(h2.settings.SettingCodes.INITIAL_WINDOW_SIZE, value)
        case "frame size":
            peer.change_setting(h2.settings.SettingCodes.MAX_FRAME_SIZE, value)
        case "stick":
            peer.wire.is_stuck = True
        case "unstick":
            peer.wire.unstick()
    peer.speak()
