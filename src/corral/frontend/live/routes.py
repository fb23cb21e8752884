"""The live stream, the fleet summary and the last hour: `/api/v1/live`, `/api/v1/fleet/summary`, `/api/v1/history`."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import AccessDenied, InvalidInput
from corral.base.ids import NodeId
from corral.base.tasks import Poke
from corral.frontend.access.decide import Permission
from corral.frontend.access.principals import Principal
from corral.frontend.api.parameters import number
from corral.frontend.api.route import AdminContext, Caller, RouteSpec, answer
from corral.frontend.api.streams import stream_response
from corral.frontend.live.decide.frames import BEAT
from corral.frontend.live.decide.history import POINTS, STEP_SECONDS, SeriesName
from corral.frontend.live.decide.topics import PERMISSION, allowed, read_place, read_topics
from corral.frontend.live.hub import LiveReader
from corral.wire.go_json import format_time
from corral.wire.live import FleetSummaryAnswer, HistoryAnswer, HistorySeries, LiveFrame, LiveReady

_LONGEST_PAUSE: Final = timedelta(seconds=1)
"""A reader looks at its key once in a while, whether something changed or not."""
_MOST_MINUTES: Final = POINTS * STEP_SECONDS // 60


async def live(context: AdminContext, request: Request, caller: Caller) -> Response:
    requested = read_topics(request.query_params.get("topics"))
    topics = allowed(requested, caller.can)
    if not topics:
        names = ", ".join(topic.name for topic in requested)
        needed = ", ".join(sorted({PERMISSION[topic.kind].value for topic in requested}))
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


async def history(context: AdminContext, request: Request, caller: Caller) -> Response:
    query, fleet_history = request.query_params, context.live.history
    names, minutes = _series(query.get("series")), _minutes(query.get("minutes", "60"))
    only = {label: frozenset({query[label]}) for label in ("model",) if query.get(label)}
    if node := query.get("node"):
        only["node_id"] = frozenset(await _node_ids(context, node))
    points = minutes * 60 // STEP_SECONDS
    begins_at, plotted = fleet_history.plotted(names, points=points, only=only)
    return answer(
        HistoryAnswer(
            step_seconds=STEP_SECONDS,
            begins_at=format_time(begins_at),
            series=[
                HistorySeries(name=series.name, labels=dict(series.labels), values=series.values) for series in plotted
            ],
            frontend=context.frontend_id,
            left_out=fleet_history.left_out,
        )
    )


async def _node_ids(context: AdminContext, node: str) -> list[str]:
    """A node by its id, or all of its name."""
    if await context.nodes.store.get(NodeId(node)) is not None:
        return [node]
    return [each.id for each in await context.nodes.store.find_by_name(node)]


def _series(text: str | None) -> list[SeriesName]:
    if text is None:
        return list(SeriesName)
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in set(SeriesName):
            raise InvalidInput("series", f"there is no {name[:40]!r}; say some of {', '.join(SeriesName)}")
    return [SeriesName(name) for name in names]


def _minutes(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 2 or not 1 <= int(text) <= _MOST_MINUTES:
        raise InvalidInput("minutes", f"must be a number from 1 to {_MOST_MINUTES}, got {text[:20]!r}")
    return int(text)


ROUTES = [
    RouteSpec(
        "GET",
        "/api/v1/live",
        live,
        "The fleet as server-sent events: snapshots of topics, then what changes, at most four times a second. After a "
        "break, `Last-Event-ID` says what need not be sent again. Topics that the key may not read are left out.",
        access=Permission.FLEET_READ,
        streams={"snapshot": LiveFrame, "change": LiveFrame, "ready": LiveReady},
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
    RouteSpec(
        "GET",
        "/api/v1/history",
        history,
        "The last hour in steps of ten seconds, for plots: what this frontend heard from its gateways, and from nodes "
        "that beat here. It is kept in memory: a restart forgets it, and another frontend has its own.",
        access=Permission.METRICS_READ,
        gives=HistoryAnswer,
        query={
            "series": "names with commas between them, all by default: "
            + ", ".join(f"`{name}`" for name in SeriesName),
            "minutes": number(f"how far back, 1 to {_MOST_MINUTES} (the default)", least=1, most=_MOST_MINUTES),
            "node": "only memory of the node with this id or name",
            "model": "only series of this model",
        },
        codes={200: "series of the same length", 400: "`series` or `minutes` makes no sense"},
    ),
]
