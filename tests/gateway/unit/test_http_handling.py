"""Searches the HTTP handling for requests that the gateway and whoever is behind it understand differently.

The measure is a reader written for this test, which knows nothing but RFC 9112 at its strictest: what reaches an engine
must be what this reader finds in the client's bytes, whatever the pieces in which they come.
"""

import asyncio
import itertools
import json
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.gateway.inference import ROUTES
from tests.kit.wire import KEY, Answerer, Wire, WireGateway

TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
CHAT = b"/v1/chat/completions"
CASES = int(os.environ.get("CORRAL_FUZZ_CASES", "300"))
"""Raise it to search for longer."""


class Seen(NamedTuple):
    method: bytes
    target: bytes
    body: bytes


class Malformed(Exception):
    """Not a request."""


class Incomplete(Exception):
    """Not yet a request."""


def read_all(data: bytes) -> tuple[list[Seen], str]:
    """Requests in some bytes, and how they end: `whole`, `incomplete` or `malformed`."""
    found = []
    try:
        while data:
            if data in (b"\r", b"\r\n"):
                return found, "incomplete"
            if data.startswith(b"\r\n"):
                data = data[2:]
                continue
            seen, data = read_one(data)
            found.append(seen)
    except Malformed:
        return found, "malformed"
    except Incomplete:
        return found, "incomplete"
    return found, "whole"


def read_one(data: bytes) -> tuple[Seen, bytes]:
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end:
        raise Incomplete
    line, *fields = head.split(b"\r\n")
    words = line.split(b" ")
    if len(words) != 3 or not TOKEN.fullmatch(words[0]) or words[2] not in (b"HTTP/1.0", b"HTTP/1.1"):
        raise Malformed
    target = read_target(words[1])
    headers = [read_field(field) for field in fields]
    body, rest = read_body(headers, rest, words[2])
    return Seen(words[0], target, body), rest


def read_target(target: bytes) -> bytes:
    """The path and query, whether the target has a scheme and a host before them or not."""
    if origin := re.match(rb"(?i:https?)://[a-z0-9.]+(?::([0-9]{0,5}))?(?=[/?]|\Z)", target):
        if int(origin[1] or 0) > 65535:
            raise Malformed
        target = target[origin.end() :]
        target = target if target.startswith(b"/") else b"/" + target
    if not re.fullmatch(rb"/[!-\"$-~]*", target):
        raise Malformed
    return target


def read_field(field: bytes) -> tuple[bytes, bytes]:
    name, colon, value = field.partition(b":")
    if not colon or not TOKEN.fullmatch(name) or not VALUE.fullmatch(value):
        raise Malformed
    return name.lower(), value.strip(b" \t")


def read_body(headers: list[tuple[bytes, bytes]], rest: bytes, version: bytes) -> tuple[bytes, bytes]:
    lengths = [value for name, value in headers if name == b"content-length"]
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if codings:
        if lengths or codings != [b"chunked"] or version != b"HTTP/1.1":
            raise Malformed
        return read_chunks(rest)
    if not lengths:
        return b"", rest
    if len(lengths) > 1 or not re.fullmatch(rb"[0-9]{1,18}", lengths[0]):
        raise Malformed
    length = int(lengths[0])
    if len(rest) < length:
        raise Incomplete
    return rest[:length], rest[length:]


def read_chunks(rest: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        line, end, rest = rest.partition(b"\r\n")
        if not end:
            raise Incomplete
        size, _, extension = line.partition(b";")
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,100}", size) or not VALUE.fullmatch(extension):
            raise Malformed
        length = int(size, 16)
        if not length:
            break
        if len(rest) < length + 2:
            raise Incomplete
        if rest[length : length + 2] != b"\r\n":
            raise Malformed
        body, rest = body + rest[:length], rest[length + 2 :]
    while True:
        line, end, rest = rest.partition(b"\r\n")
        if not end:
            raise Incomplete
        if not line:
            return body, rest
        read_field(line)


# Requests to begin with.


def chat(text: str = "hi") -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()


def post(body: bytes, *headers: bytes, framing: bytes | None = None) -> bytes:
    framing = b"Content-Length: %d" % len(body) if framing is None else framing
    lines = [b"POST %b HTTP/1.1" % CHAT, b"Host: a", b"Authorization: Bearer " + KEY.encode(), framing, *headers]
    return b"\r\n".join([line for line in lines if line]) + b"\r\n\r\n" + body


def chunked(*pieces: bytes) -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))
    return post(body, framing=b"Transfer-Encoding: chunked")


BEARER = b"Authorization: Bearer " + KEY.encode()
GET = b"GET /ui?q=1 HTTP/1.1\r\nHost: a\r\n%b\r\n\r\n" % BEARER
ABSOLUTE = GET.replace(b"/ui", b"http://b:80/ui")
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n%b\r\n\r\n" % BEARER
"""With a key: what has none would be refused already for that."""
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
ID_LINE = re.compile(rb"X-Request-ID: req-[0-9a-f]{12}-[0-9a-f]+\r\n")
"""One more in every answer; not the same twice."""
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def count(data: bytes) -> int:
    return len(read_all(data)[0])


class Outcome(NamedTuple):
    asked: list[Seen]
    """What engine and control were sent."""
    answers: bytes
    is_open: bool


def run(loop: asyncio.AbstractEventLoop, pieces: list[bytes], answer: list[bytes] | None = None) -> Outcome:
    """One connection's life, after which nothing may be left."""
    gateway = WireGateway(loop)
    client = gateway.connect()
    gateway.talk(client, pieces, Answerer(count, lambda: answer or [OK]))
    sent = [read_all(written) for written in gateway.pool.journal]
    assert all(written.split(b" ")[1].startswith(b"/") for written in gateway.pool.journal), "not a path"
    assert all(end == "whole" and len(found) == 1 for found, end in sent), gateway.pool.journal
    answers = ID_LINE.sub(b"", client.written)
    outcome = Outcome([seen for found, _ in sent for seen in found], answers, client.is_open)
    check_nothing_is_left(gateway, client)
    return outcome


def check_nothing_is_left(gateway: WireGateway, client: Wire) -> None:
    gateway.expire(client)
    assert not client.is_open, "this connection would hang"
    assert not gateway.clients
    assert not gateway.services.directory.in_flight()
    assert not gateway.services.bodies.held
    assert not gateway.services.heads.held
    assert not gateway.services.dispatcher.waiting()
    assert gateway.pool.open_count == gateway.pool.idle_count


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(ends)]


GOOD = {
    "one": post(chat()),
    "two": post(chat()) + post(chat("again")),
    "three": post(chat()) + b"\r\n" + GET + post(chat("again")),
    "chunked": chunked(chat()[:9], chat()[9:]),
    "absolute": ABSOLUTE + post(chat()).replace(CHAT, b"http://b" + CHAT) + ABSOLUTE.replace(b"/ui?", b"?"),
    "odd fields": post(chat(), b"X-Empty:", b"X-High: \xff\xfe", b"X-Tab:\ta\tb", b"!#$%&'*+-.^_`|~: 1"),
}


@pytest.mark.parametrize("name", GOOD)
def test_requests_split_at_every_byte_are_the_same_requests(loop: asyncio.AbstractEventLoop, name: str) -> None:
    data = GOOD[name]
    expected, _ = read_all(data)
    for cut in range(len(data)):
        outcome = run(loop, [data[:cut], data[cut:]])
        assert outcome.asked == expected
        assert outcome.answers == OK * len(expected)
        assert outcome.is_open


@pytest.mark.parametrize("name", GOOD)
def test_requests_byte_by_byte_are_the_same_requests(loop: asyncio.AbstractEventLoop, name: str) -> None:
    expected, _ = read_all(GOOD[name])
    outcome = run(loop, [bytes([byte]) for byte in GOOD[name]])
    assert outcome.asked == expected


REFUSED = {
    "without a key and a body": b"POST %b HTTP/1.1\r\nHost: a\r\n\r\n" % CHAT,
    "without a key": b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n" % CHAT,
    "not JSON": post(b"{"),
    "no model": post(b"{}"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_follows_a_refused_request_is_neither_lost_nor_mistaken(
    loop: asyncio.AbstractEventLoop, name: str
) -> None:
    data = REFUSED[name] + GET + REFUSED[name] + GET
    for cut in range(len(data)):
        outcome = run(loop, [data[:cut], data[cut:]])
        assert outcome.asked == [Seen(b"GET", b"/ui?q=1", b"")] * 2
        assert outcome.answers.count(b"HTTP/1.1 4") == 2
        assert outcome.answers.endswith(OK)
        assert outcome.is_open


@pytest.mark.parametrize("name", REFUSED)
def test_garbage_after_a_refused_request_is_not_skipped(loop: asyncio.AbstractEventLoop, name: str) -> None:
    data = REFUSED[name] + chat() + b"\r\n" + GET
    for cut in range(len(data)):
        outcome = run(loop, [data[:cut], data[cut:]])
        assert outcome.asked == []
        assert outcome.answers.count(b"HTTP/1.1 4") == 2
        assert outcome.answers.count(b"Connection: close") == 1


@pytest.mark.parametrize("answer", [OK, STREAM, b"HTTP/1.1 204 No\r\n\r\n", b"HTTP/1.1 100 C\r\n\r\n" + STREAM])
def test_answers_split_at_every_byte_are_the_same_answers(loop: asyncio.AbstractEventLoop, answer: bytes) -> None:
    shown = answer.removeprefix(b"HTTP/1.1 100 C\r\n\r\n")
    for cut in range(len(answer)):
        outcome = run(loop, [GOOD["two"]], [answer[:cut], answer[cut:]])
        assert outcome.answers == shown * 2
        assert outcome.is_open


HEADERS = {
    "length and coding": [b"Content-Length: 4", b"Transfer-Encoding: chunked"],
    "coding and length": [b"Transfer-Encoding: chunked", b"Content-Length: 4"],
    "two lengths": [b"Content-Length: 0", b"Content-Length: 4"],
    "two equal lengths": [b"Content-Length: 4", b"Content-Length: 4"],
    "list of lengths": [b"Content-Length: 0, 4"],
    "plus": [b"Content-Length: +4"],
    "minus": [b"Content-Length: -4"],
    "hex length": [b"Content-Length: 0x4"],
    "underscored length": [b"Content-Length: 1_0"],
    "empty length": [b"Content-Length:"],
    "inner space": [b"Content-Length: 1 0"],
    "overflow": [b"Content-Length: 18446744073709551620"],
    "folded": [b"X: a\r\n b"],
    "folded coding": [b"Transfer-Encoding:\r\n chunked"],
    "bare line feed": [b"X: a\nContent-Length: 4"],
    "bare carriage return": [b"X: a\rContent-Length: 4"],
    "space before the colon": [b"Content-Length : 4"],
    "tab before the colon": [b"Transfer-Encoding\t: chunked"],
    "space before the name": [b" Content-Length: 4"],
    "no colon": [b"Content-Length"],
    "no name": [b": 4"],
    "zero in a value": [b"X: a\0b"],
    "zero in a name": [b"X\0: a"],
    "control character": [b"X: a\x0bb"],
    "delete": [b"X: a\x7fb"],
    "high name": [b"X\xff: a"],
    "identity": [b"Transfer-Encoding: identity"],
    "gzip": [b"Transfer-Encoding: gzip, chunked"],
    "chunked first": [b"Transfer-Encoding: chunked, identity"],
    "chunked twice": [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"],
    "almost chunked": [b"Transfer-Encoding: xchunked"],
    "quoted chunked": [b'Transfer-Encoding: "chunked"'],
    "chunked with a tail": [b"Transfer-Encoding: chunked;q=1"],
    "vertical tab": [b"Transfer-Encoding: \x0bchunked"],
    "unknown coding": [b"Transfer-Encoding: cow", b"Transfer-Encoding: chunked"],
    "two hosts": [b"Host: b"],
    "bad host": [b"Host: a b"],
    "upgrade with a body": [b"Connection: Upgrade", b"Upgrade: websocket", b"Content-Length: 4"],
    "two authorizations": [b"Authorization: Bearer x"],
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_head_that_can_be_read_in_two_ways_is_refused(loop: asyncio.AbstractEventLoop, name: str) -> None:
    data = post(b"", *HEADERS[name], framing=b"") + b"0\r\n\r\n" + SMUGGLED
    check_refused(loop, data)


LINES = {
    "user in the host": b"GET http://user@b/ui HTTP/1.1",
    "password in the host": b"GET http://user:pass@b/ui HTTP/1.1",
    "empty user in the host": b"GET http://@b/ui HTTP/1.1",
    "no host": b"GET http:///ui HTTP/1.1",
    "only a port": b"GET http://:80/ui HTTP/1.1",
    "only a scheme": b"GET http:// HTTP/1.1",
    "one slash": b"GET http:/b/ui HTTP/1.1",
    "no slash after the scheme": b"GET http:b/ui HTTP/1.1",
    "no scheme": b"GET b/ui HTTP/1.1",
    "another scheme": b"GET ftp://b/ui HTTP/1.1",
    "scheme of sockets": b"GET ws://b/ui HTTP/1.1",
    "longer scheme": b"GET xhttp://b/ui HTTP/1.1",
    "two ports": b"GET http://b:80:80/ui HTTP/1.1",
    "port of letters": b"GET http://b:http/ui HTTP/1.1",
    "port too large": b"GET http://b:65536/ui HTTP/1.1",
    "long port": b"GET http://b:000080/ui HTTP/1.1",
    "half an escape in the host": b"GET http://b%2/ui HTTP/1.1",
    "backslash in the host": b"GET http://b\\c/ui HTTP/1.1",
    "quote in the host": b'GET http://b"/ui HTTP/1.1',
    "fragment after the host": b"GET http://b#/ui HTTP/1.1",
    "fragment of a URL": b"GET http://b/ui#x HTTP/1.1",
    "space in the host": b"GET http://b c/ui HTTP/1.1",
    "high host": b"GET http://b\xff/ui HTTP/1.1",
    "bare IPv6": b"GET http://::1/ui HTTP/1.1",
    "broken IPv6": b"GET http://[::1/ui HTTP/1.1",
    "odd IPv6": b"GET http://[1:2]/ui HTTP/1.1",
    "zone of IPv6": b"GET http://[fe80::1%25eth0]/ui HTTP/1.1",
    "text after IPv6": b"GET http://[::1]b/ui HTTP/1.1",
    "tunnel to a URL": b"CONNECT http://b/ui HTTP/1.1",
    "asterisk for others": b"GET * HTTP/1.1",
    "authority": b"CONNECT b:80 HTTP/1.1",
    "asterisk": b"OPTIONS * HTTP/1.1",
    "no slash": b"GET ui HTTP/1.1",
    "fragment": b"GET /ui#x HTTP/1.1",
    "two spaces": b"GET  /ui HTTP/1.1",
    "space in the target": b"GET /ui x HTTP/1.1",
    "tab": b"GET\t/ui HTTP/1.1",
    "space first": b" GET /ui HTTP/1.1",
    "space last": b"GET /ui HTTP/1.1 ",
    "zero": b"GET /\0 HTTP/1.1",
    "high": b"GET /\xff HTTP/1.1",
    "control character": b"GET /\x01 HTTP/1.1",
    "no version": b"GET /ui",
    "old version": b"GET /ui HTTP/0.9",
    "odd version": b"GET /ui HTTP/1.2",
    "new version": b"GET /ui HTTP/2.0",
    "longer version": b"GET /ui HTTP/1.10",
    "small letters": b"get /ui HTTP/1.1",
    "another protocol": b"GET /ui RTSP/1.1",
    "preface": b"PRI * HTTP/2.0",
    "unknown method": b"SMUGGLE /ui HTTP/1.1",
    "answer": b"HTTP/1.1 200 OK",
}


@pytest.mark.parametrize("name", LINES)
def test_a_request_line_that_is_none_is_refused(loop: asyncio.AbstractEventLoop, name: str) -> None:
    check_refused(loop, LINES[name] + b"\r\nHost: a\r\n%b\r\n\r\n" % BEARER + SMUGGLED)


CHUNKS = {
    "0x": b"0x4\r\nabcd\r\n0\r\n\r\n",
    "plus": b"+4\r\nabcd\r\n0\r\n\r\n",
    "minus": b"-4\r\nabcd\r\n0\r\n\r\n",
    "underscore": b"0_4\r\nabcd\r\n0\r\n\r\n",
    "space before": b" 4\r\nabcd\r\n0\r\n\r\n",
    "space after": b"4 \r\nabcd\r\n0\r\n\r\n",
    "no size": b"\r\nabcd\r\n0\r\n\r\n",
    "overflow": b"10000000000000004\r\nabcd\r\n0\r\n\r\n",
    "line feed after size": b"4\nabcd\r\n0\r\n\r\n",
    "line feed after data": b"4\r\nabcd\n0\r\n\r\n",
    "carriage return after size": b"4\rabcd\r\n0\r\n\r\n",
    "longer than it says": b"3\r\nabcd\r\n0\r\n\r\n",
    "line feed in an extension": b"4;a\nb\r\nabcd\r\n0\r\n\r\n",
    "carriage return in an extension": b"4;a\rb\r\nabcd\r\n0\r\n\r\n",
    "zero in an extension": b"4;a\0b\r\nabcd\r\n0\r\n\r\n",
    "bare end": b"4\r\nabcd\r\n0\n\n",
    "trailer with a length": b"4\r\nabcd\r\n0\r\nContent-Length: 9\r\n\r\n",
    "folded trailer": b"4\r\nabcd\r\n0\r\nX: a\r\n b\r\n\r\n",
}


@pytest.mark.parametrize("name", CHUNKS)
def test_chunks_that_can_be_read_in_two_ways_are_refused(loop: asyncio.AbstractEventLoop, name: str) -> None:
    check_refused(loop, post(CHUNKS[name], framing=b"Transfer-Encoding: chunked") + SMUGGLED)


def check_refused(loop: asyncio.AbstractEventLoop, data: bytes) -> None:
    """One error, then the end; whole, cut in two anywhere, behind a good request, and behind one with a like head."""
    for cut in range(len(data)):
        outcome = run(loop, [data[:cut], data[cut:]])
        assert outcome.asked == []
        assert re.match(rb"HTTP/1.1 4\d\d ", outcome.answers)
        assert outcome.answers.count(b"HTTP/1.1 ") == 1
        assert b"Connection: close" in outcome.answers
    outcome = run(loop, [GET + data])
    assert outcome.asked == [Seen(b"GET", b"/ui?q=1", b"")]
    assert outcome.answers.startswith(OK + b"HTTP/1.1 4")
    outcome = run(loop, [post(chat()) + data])
    assert outcome.asked == [Seen(b"POST", CHAT, chat())]
    assert outcome.answers.startswith(OK + b"HTTP/1.1 4")


NASTY = [b"\r\n", b"\n", b"\r", b" ", b"\t", b"\0", b":", b"0", b"5", b"f", b";", b",", b"\r\n\r\n", b"\xff", b"\x0b"]
NASTY += [
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Host: b\r\n",
    b"0\r\n\r\n",
    SMUGGLED,
    b"GET / ",
    b"http://b",
    b"@",
]

requests = st.one_of(
    st.text(max_size=20).map(lambda text: post(chat(text))),
    st.lists(st.binary(min_size=1, max_size=12), max_size=4).map(lambda pieces: chunked(*pieces)),
    st.sampled_from([b"HEAD" + GET[3:], GET[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"]),
    st.sampled_from([GET, ABSOLUTE, post(chat(), b"Connection: close"), GET.replace(b"1.1", b"1.0"), b"\r\n" + GET]),
)
edits = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 6), st.sampled_from([b"", *NASTY])), max_size=4)
cuts = st.lists(st.integers(0, 10_000), max_size=8)


@settings(max_examples=CASES, deadline=None)
@given(parts=st.lists(requests, min_size=1, max_size=4), edits=edits, cuts=cuts, answer_cuts=cuts)
def test_whatever_comes_nothing_is_asked_that_was_not_sent(
    loop: asyncio.AbstractEventLoop,
    parts: list[bytes],
    edits: list[tuple[int, int, bytes]],
    cuts: list[int],
    answer_cuts: list[int],
) -> None:
    data = b"".join(parts)
    for at, length, new in edits:
        at %= len(data) + 1
        data = data[:at] + new + data[at + length :]
    outcome = run(loop, split(data, cuts), split(STREAM, answer_cuts))
    expected = [as_asked(seen) for seen in read_all(data)[0] if not is_answered_here(seen)]
    rest = iter(expected)
    assert all(seen in rest for seen in outcome.asked), (outcome.asked, expected)


def as_asked(seen: Seen) -> Seen:
    """Models are asked under one name each, whichever of its paths the client used."""
    path, mark, query = seen.target.partition(b"?")
    is_inference = seen.method == b"POST" and path in ROUTES
    return seen._replace(target=ROUTES[path] + (mark + query if query else b"")) if is_inference else seen


def is_answered_here(seen: Seen) -> bool:
    return seen.target.partition(b"?")[0] in (b"/healthz", b"/readyz")


@settings(max_examples=CASES // 2, deadline=None)
@given(
    head=st.sampled_from([b"HTTP/1.1 200 OK\r\nContent-Length: 5", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked"]),
    body=st.sampled_from([b"abcde", b"5\r\nabcde\r\n0\r\n\r\n", OK]),
    edits=edits,
    cuts=cuts,
)
def test_whatever_an_engine_answers_nobody_hangs(
    loop: asyncio.AbstractEventLoop, head: bytes, body: bytes, edits: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    data = head + b"\r\n\r\n" + body
    for at, length, new in edits:
        at %= len(data) + 1
        data = data[:at] + new + data[at + length :]
    run(loop, [GOOD["two"]], split(data, cuts))
