"""What backends of a node have written, in Corral's own form: read once, or followed as server-sent events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import TypeVar

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import InvalidInput
from corral.base.words import parse_duration
from corral.frontend.access.decide import Permission
from corral.frontend.api.parameters import number, switch
from corral.frontend.api.route import AdminContext, Caller, RouteSpec, answer, read_number, read_switch, read_text
from corral.frontend.api.streams import relay_response
from corral.frontend.nodes.contacts import WorkerUnreachable
from corral.frontend.nodes.decide.log_lines import MOST_LINES, LogFrame, LogTail, WantedLines, read_place
from corral.frontend.nodes.logs import WorkerAnswer
from corral.frontend.nodes.routes.native import node_id_of
from corral.wire.go_json import parse_time
from corral.wire.logs import LogGap, LogLine, LogLineView, LogPage

T = TypeVar("T")

_USUAL_LINES = WantedLines().lines


async def list_names(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(_items(await context.nodes.logs.names(node_id_of(request)), str))


async def read_log(context: AdminContext, request: Request, caller: Caller) -> Response:
    lines_asked = _wanted(context, request)
    node_id, model = node_id_of(request), request.path_params["model"]
    if not read_switch(request.query_params, "follow"):
        lines = _items(await context.nodes.logs.lines(node_id, model), LogLine)
        return answer(LogPage(items=LogTail(lines_asked).page(lines)))
    await context.nodes.following.check(node_id)
    events = _events(context.nodes.following.frames(node_id, model, lines_asked))
    return relay_response(context, request, events, permission=Permission.NODES_LOGS)


async def _events(frames: AsyncGenerator[LogFrame | None, None]) -> AsyncGenerator[bytes | None, None]:
    async with aclosing(frames):
        async for frame in frames:
            yield None if frame is None else _event(frame)


def _event(frame: LogFrame) -> bytes:
    data = msgspec.json.encode(frame)
    if isinstance(frame, LogLineView):
        return f"id: {frame.id}\nevent: line\ndata: ".encode() + data + b"\n\n"
    return b"event: gap\ndata: " + data + b"\n\n"


def _wanted(context: AdminContext, request: Request) -> WantedLines:
    query = request.query_params
    lines = read_number(query, "lines")
    if lines is not None and lines > MOST_LINES:
        raise InvalidInput("lines", f"must be a number from 0 to {MOST_LINES}, got {lines}")
    return WantedLines(
        lines=_USUAL_LINES if lines is None else lines,
        since=_since(query, context.clock.now()),
        after=read_place(request.headers.get("last-event-id", "")),
        search=read_text(query, "search"),
    )


def _since(query: QueryParams, now: datetime) -> datetime | None:
    """A moment, or how long ago."""
    text = query.get("since", "")
    if not text:
        return None
    try:
        return parse_time(text)
    except ValueError:
        pass
    try:
        return now - parse_duration(text)
    except (ValueError, OverflowError) as error:
        problem = f"must be a time such as 2030-01-31T12:00:00Z, or a duration such as 10m, got {text[:40]!r}"
        raise InvalidInput("since", problem) from error


def _items(reply: WorkerAnswer, kind: type[T]) -> list[T]:
    if reply.status != 200:
        raise WorkerUnreachable(f"the worker answered {reply.status}")
    try:
        return msgspec.json.decode(reply.body, type=list[kind] | None) or []  # type: ignore[valid-type]
    except msgspec.MsgspecError as error:
        raise WorkerUnreachable("the worker sent what is no log") from error


_CODES = {
    404: "no such node",
    409: "the node waits for approval, and is not contacted",
    502: "the worker cannot be reached, or answers nonsense",
}

ROUTES = [
    RouteSpec(
        "GET",
        "/api/v1/nodes/{id}/logs",
        list_names,
        "Names of models that a node has logs of, asked for now.",
        access=Permission.NODES_LOGS,
        gives=list[str],
        codes={200: "a list, by name", **_CODES},
    ),
    RouteSpec(
        "GET",
        "/api/v1/nodes/{id}/logs/{model:path}",
        read_log,
        "What the processes of a model on a node wrote, or one of them (`MODEL#0`). With `follow`, as server-sent "
        "events: `line` for each line, `gap` where lines may be missing. After a break, `Last-Event-ID` says what need "
        "not be told again.",
        access=Permission.NODES_LOGS,
        gives=LogPage,
        streams={"line": LogLineView, "gap": LogGap},
        query={
            "follow": switch("`true`: go on with what is written from now on"),
            "lines": number(f"how many past lines to begin with, 0 to {MOST_LINES}", most=MOST_LINES),
            "since": "only lines since this time, such as 2030-01-31T12:00:00Z, or 10m for the last ten minutes",
            "search": "only lines with this text, whatever its case",
        },
        codes={
            200: "lines, or a stream",
            400: "one of the parameters makes no sense; `field` names it",
            **_CODES,
            429: "too many people follow logs at this frontend",
        },
    ),
]
