"""A second HTTP port, in front of llama.cpp's own, for requests that need care: see `llama_careful.py`.

Whoever asks knows which those are, and asks the engine's own port for all else, so nothing stands in the way of most
requests. It wants the same key, and reads no body without it. Each connection is for one request; when it is closed
early, the work on it ends.
"""

import asyncio
import contextlib
import hmac
import json
import logging
import secrets
import time
from datetime import UTC, datetime
from typing import Final, NamedTuple

from engine_process import Engine, EngineAnswer
from llama_careful import MESSAGES, RESPONSES, Joining, Plan, cut_vectors, plan_for
from llama_ollama import ROUTES as OLLAMA_ROUTES
from llama_ollama import OllamaAnswer, question_for
from llama_refusals import Body, Refused
from llama_repairs import AnswerRepair, MessageRepair, ResponseRepair

log = logging.getLogger("backend")

_HEAD_BYTES: Final = 64 * 1024
_MOST_BYTES: Final = 64 * 1024 * 1024
_REQUEST_SECONDS: Final = 30.0
_ID_BYTES: Final = 12
_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"
_LINES: Final = "application/x-ndjson"
"""The type of a stream that has a JSON object in every line."""
_REASONS: Final = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 413: "Content Too Large"}


class Front:
    """Listens from `listen` to `close`."""

    def __init__(self, engine: Engine, *, key: str) -> None:
        self._engine = engine
        self._expected = f"Bearer {key}".encode()
        self._server: asyncio.Server | None = None

    async def listen(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._server = await asyncio.start_server(self._serve, host.strip("[]"), int(port), limit=_HEAD_BYTES)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(writer)
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await _read_head(reader)
                if not hmac.compare_digest(head.authorization.encode("latin-1"), self._expected):
                    await client.whole(401, b'{"error":{"message":"invalid key","code":"invalid_api_key"}}')
                    return
                request = _Request(head.path, await reader.readexactly(head.length))
            await self._answer_while_there(request, reader, client)
        except (_NoRequest, ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the process is gone, or is not ours
        except Exception:
            log.exception("a request that needs care failed")
            await client.fail()
        finally:
            writer.close()

    async def _answer_while_there(self, request: "_Request", reader: asyncio.StreamReader, client: "_Client") -> None:
        """The client sends nothing after its request: whatever comes, or the end, means that it is gone."""
        answering = asyncio.create_task(self._answer(request, client), name="answer")
        leaving = asyncio.create_task(reader.read(1), name="leave")
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)

    async def _answer(self, request: "_Request", client: "_Client") -> None:
        try:
            asked = _parsed(request.body)
            if request.path in OLLAMA_ROUTES:
                await self._answer_ollama(request.path, asked, client)
                return
            plan = plan_for(request.path, asked, offers_tools=self._engine.offers_tools)
            if (repair := _repair_for(request.path, asked)) is not None:
                await self._send_repaired(plan, repair, request.path, client)
            else:
                await self._carry_out(plan, request.path, client)
        except Refused as refused:
            await client.whole(400, refused.document())

    async def _answer_ollama(self, path: str, asked: Body, client: "_Client") -> None:
        begun = time.monotonic_ns()
        name = str(asked.get("model", ""))
        answers = OllamaAnswer(
            path=path, model=name, begun=datetime.now(UTC), elapsed=lambda: time.monotonic_ns() - begun
        )
        if (question := question_for(path, asked)) is None:
            await client.whole(200, json.dumps(answers.loaded()).encode())
            return
        plan = plan_for(question.path, question.body, offers_tools=self._engine.offers_tools)
        (request,) = plan.requests
        if question.streams:
            request = {**request, "stream_options": {"include_usage": True}}
        async with self._engine.asked(question.path, request) as answer:
            if answer.status != 200:
                await client.pass_on(answer)
            elif question.streams:
                await self._stream_lines(answer, answers, client)
            else:
                whole = json.loads(await answer.whole())
                whole = cut_vectors(whole, plan) if plan.dimensions else whole
                await client.whole(200, json.dumps(answers.whole(whole)).encode())

    async def _stream_lines(self, answer: EngineAnswer, answers: OllamaAnswer, client: "_Client") -> None:
        async for event in answer.events():
            if (line := answers.event(event)) is not None:
                await client.line(line)
            if "error" in event:
                await client.end()
                return
        for line in answers.last():
            await client.line(line)
        await client.end()

    async def _carry_out(self, plan: Plan, path: str, client: "_Client") -> None:
        if plan.is_plain:
            async with self._engine.asked(path, plan.requests[0]) as answer:
                await client.pass_on(answer)
        elif plan.streams:
            await self._stream(plan, path, client)
        else:
            await self._join(plan, path, client)

    async def _send_repaired(self, plan: Plan, repair: AnswerRepair, path: str, client: "_Client") -> None:
        async with self._engine.asked(path, plan.requests[0]) as answer:
            if answer.status != 200:
                await client.pass_on(answer)
            elif plan.streams:
                async for event in answer.events():
                    for told in repair.events(event) if "type" in event else (event,):
                        await client.event(told)
                await client.end()
            else:
                await client.whole(200, json.dumps(repair.whole(json.loads(await answer.whole()))).encode())

    async def _join(self, plan: Plan, path: str, client: "_Client") -> None:
        answers: list[Body] = []
        for request in plan.requests:
            async with self._engine.asked(path, request) as answer:
                if answer.status != 200:
                    await client.pass_on(answer)
                    return
                answers.append(json.loads(await answer.whole()))
        whole = cut_vectors(answers[0], plan) if plan.dimensions else Joining(plan).whole(answers)
        await client.whole(200, json.dumps(whole).encode())

    async def _stream(self, plan: Plan, path: str, client: "_Client") -> None:
        """Part by part. What fails before the first event has a status of its own, what fails later is an event."""
        joining = Joining(plan)
        sample: Body = {}
        for joining.number, request in enumerate(plan.requests):
            counted = {**request, "stream_options": {"include_usage": True}}
            async with self._engine.asked(path, counted) as answer:
                if answer.status != 200 and not client.has_begun:
                    await client.pass_on(answer)
                    return
                if answer.status != 200:
                    await client.part(b"data: " + await answer.whole() + b"\n\n")
                    await client.end()
                    return
                async for event in answer.events():
                    if "error" in event:
                        await client.event(event)
                        await client.end()
                        return
                    if (joined := joining.event(event)) is not None:
                        sample = joined
                        await client.event(joined)
        if plan.counts and sample:
            await client.event(joining.last_event(sample))
        await client.part(b"data: [DONE]\n\n")
        await client.end()


def _repair_for(path: str, asked: Body) -> AnswerRepair | None:
    """What completes the answer to this request; None where the engine's is complete."""
    if path == RESPONSES:
        return ResponseRepair(asked, int(time.time()))
    if path == MESSAGES:
        return MessageRepair(str(asked.get("model", "")), f"msg_{secrets.token_hex(_ID_BYTES)}")
    return None


def _parsed(body: bytes) -> Body:
    try:
        parsed = json.loads(body)
    except ValueError as error:
        raise Refused("body", f"is not JSON: {error}", code="invalid_json") from error
    if not isinstance(parsed, dict):
        raise Refused("body", "must be a JSON object", code="invalid_body")
    return parsed


class _NoRequest(Exception):
    """What came is no request that the gateway would send."""


class _Head(NamedTuple):
    path: str
    authorization: str
    length: int


class _Request(NamedTuple):
    path: str
    body: bytes


async def _read_head(reader: asyncio.StreamReader) -> _Head:
    """Read a request head. Raise _NoRequest when it states no length or one that is too large."""
    line, *fields = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (one.partition(":") for one in fields)}
    length, words = headers.get("content-length", ""), line.split(" ")
    if not length.isdecimal() or int(length) > _MOST_BYTES or len(words) != 3:
        raise _NoRequest(line)
    return _Head(words[1].partition("?")[0], headers.get("authorization", ""), int(length))


class _Client:
    """The other side of a connection that ends with its one answer."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.has_begun = False

    async def whole(self, status: int, body: bytes, *, content_type: str = _JSON) -> None:
        self._begin(status, content_type, f"Content-Length: {len(body)}")
        await self._send(body)

    async def pass_on(self, answer: EngineAnswer) -> None:
        if not answer.is_chunked:
            await self.whole(answer.status, await answer.whole(), content_type=answer.content_type)
            return
        self._begin(answer.status, answer.content_type, "Transfer-Encoding: chunked")
        async for part in answer.parts:
            await self.part(part)
        await self.end()

    async def event(self, event: Body) -> None:
        """Send an event, under its type where it has one: streams of chats have none."""
        name = f"event: {event['type']}\n".encode() if isinstance(event.get("type"), str) else b""
        await self.part(name + b"data: " + json.dumps(event).encode() + b"\n\n")

    async def line(self, line: Body) -> None:
        await self.part(json.dumps(line).encode() + b"\n", content_type=_LINES)

    async def part(self, data: bytes, *, content_type: str = _EVENTS) -> None:
        if not self.has_begun:
            self._begin(200, content_type, "Transfer-Encoding: chunked")
        if data:
            await self._send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        await self._send(b"0\r\n\r\n")

    async def fail(self) -> None:
        """Report an internal error. A response that has begun is cut off, so that it is not taken for complete."""
        if self.has_begun:
            self._writer.transport.abort()
            return
        with contextlib.suppress(ConnectionError):
            await self.whole(500, b'{"error":{"message":"the backend failed","code":"engine_error"}}')

    def _begin(self, status: int, content_type: str, length: str) -> None:
        self.has_begun = True
        reason = _REASONS.get(status, "Error")
        lines = (f"HTTP/1.1 {status} {reason}", f"Content-Type: {content_type}", length, "Connection: close", "", "")
        self._writer.write("\r\n".join(lines).encode("latin-1"))

    async def _send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()
