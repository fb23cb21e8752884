"""The live stream and the fleet summary: `/api/v1/live`, `/api/v1/fleet/summary`."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import AccessDenied
from corral.base.tasks import Poke
from corral.frontend.access.decide import Permission
from corral.frontend.access.principals import Principal
from corral.frontend.api.route import AdminContext, Caller, RouteSpec, answer
from corral.frontend.api.streams import stream_response
from corral.frontend.live.decide.frames import BEAT
from corral.frontend.live.decide.topics import PERMISSION, allowed, read_place, read_topics
from corral.frontend.live.reader import LiveReader
from corral.wire.go_json import format_time
from corral.wire.live import FleetSummaryAnswer, LiveFrame

_LONGEST_PAUSE: Final = timedelta(seconds=1)
"""A reader looks at its key once in a while, whether something changed or not."""


async def live(context: AdminContext, request: Request, caller: Caller) -> Response:
    asked = read_topics(request.query_params.get("topics"))
    topics = allowed(asked, caller.can)
    if not topics:
        names = ", ".join(topic.name for topic in asked)
        needed = ", ".join(sorted({PERMISSION[topic.kind].value for topic in asked}))
        raise AccessDenied(f"this key may read none of the topics {names}; they need the permissions {needed}")
    place = request.headers.get("last-event-id") or request.query_params.get("after", "")
    reader = LiveReader(context.live.hub, topics, read_place(place))
    await reader.begin()
    return stream_response(context, request, _LiveNews(context, reader))


class _LiveNews:
    """What the hub has for one reader."""

    retry_milliseconds = 1000
    keep_alive = timedelta(seconds=10)
    comment = BEAT

    def __init__(self, context: AdminContext, reader: LiveReader) -> None:
        self._context = context
        self._reader = reader

    def listening(self) -> AbstractContextManager[Poke]:
        return self._context.live.hub.reading(self._reader.topics)

    async def news(self) -> Iterable[bytes]:
        return await self._reader.news(format_time(self._context.clock.now()))

    def pause(self) -> timedelta:
        return _LONGEST_PAUSE

    def may_go_on(self, principal: Principal) -> bool:
        return all(principal.can(PERMISSION[topic.kind]) for topic in self._reader.topics)


async def summary(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(await context.live.hub.summary())


ROUTES = [
    RouteSpec(
        "GET",
        "/api/v1/live",
        live,
        "The fleet as server-sent events: snapshots of topics, then what changes, at most four times a second. After a "
        "break, `Last-Event-ID` says what need not be told again. Topics that the key may not read are left out.",
        access=Permission.FLEET_READ,
        gives=LiveFrame,
        query={
            "topics": "names with commas between them: `summary`, `attention`, `nodes`, `replicas`, `operations`, "
            "`loads` (all of these by default), `events`, `operation:ID`, `node:ID`",
            "after": "where an earlier stream ended (or the header `Last-Event-ID`)",
        },
        codes={200: "a stream", 400: "there is no topic of one of these names", 403: "none of the topics may be read"},
    ),
    RouteSpec(
        "GET",
        "/api/v1/fleet/summary",
        summary,
        "The fleet in numbers, and all that needs a person: since when, why, and what to do.",
        access=Permission.FLEET_READ,
        gives=FleetSummaryAnswer,
        codes={200: "the summary"},
    ),
]
