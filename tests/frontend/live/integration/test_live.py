"""The live stream of one frontend: snapshots, changes, resuming, permissions, what it costs."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta

import msgspec
import pytest
from msgspec.structs import replace

from corral.base.errors import DatabaseUnavailable
from corral.base.ids import NodeId
from corral.base.tasks import running
from corral.frontend.live.decide.topics import Topic, read_place, read_topics
from corral.frontend.live.hub import SPACING, Hub
from corral.frontend.live.pictures import Pictures
from corral.frontend.live.room import LiveRoom
from corral.wire.keys import Scope
from corral.wire.live import FleetSummaryAnswer
from tests.frontend.conftest import StatementCounter
from tests.kit.asgi import AsgiStream, call, open_stream
from tests.kit.clock import ManualClock
from tests.kit.frontend import Frontend
from tests.kit.live import LiveEvent, LiveState, next_event
from tests.kit.waiting import eventually, within_timeout

NASTY = "<img src=x onerror=alert(1)>\u2028 & \"'`"
SECOND = timedelta(seconds=1)


async def register(frontend: Frontend, name: str, **more: object) -> NodeId:
    body = {"name": name, "address": "10.0.0.1:50051", "total_ram": 8, "available_ram": 2, **more}
    answer = await frontend.register(body)
    assert answer.status == 201, answer
    id = NodeId(str(msgspec.json.decode(answer.body)["id"]))
    assert (await frontend.call("POST", f"/api/v1/nodes/{id}/approve")).status == 200
    await frontend.settle()
    return id


class Reader:
    """A page that reads the stream of a frontend, and knows what it was told."""

    def __init__(self, frontend: Frontend, stream: AsgiStream, state: LiveState) -> None:
        self._hub = frontend.control.context.live.hub
        self.stream = stream
        self.state = state

    async def change(self) -> LiveEvent:
        """What the next look of the hub brings."""
        await self._hub.refresh(self._hub.read_topics)
        event = await next_event(self.stream)
        self.state.apply(event)
        return event

    async def is_quiet(self) -> bool:
        """Whether a look of the hub brings nothing."""
        await self._hub.refresh(self._hub.read_topics)
        for _ in range(10):
            await asyncio.sleep(0)
        return self.stream.is_quiet


@asynccontextmanager
async def reading(
    frontend: Frontend, topics: str = "nodes", *, after: str = "", key: str = "", state: LiveState | None = None
) -> AsyncIterator[Reader]:
    """A reader that has got all that it gets at first."""
    headers = {"authorization": f"Bearer {key or frontend.admin_key}"} | ({"last-event-id": after} if after else {})
    known = state or LiveState()
    async with open_stream(frontend.app, f"/api/v1/live?topics={topics}", headers=headers) as stream:
        await known.read_until_ready(stream)
        yield Reader(frontend, stream, known)


def new_hub(frontend: Frontend) -> Hub:
    """The hub that another control process would have."""
    hub = frontend.control.context.live.hub
    return Hub(
        Pictures(hub._pictures._sources, hub._clock),
        hub._rows,
        hub.log,
        hub._feed,
        hub._progress,
        hub._clock,
        id="another",
        frontend=hub.frontend,
    )


# Snapshots and changes.


async def test_a_reader_gets_a_snapshot_of_every_topic_then_ready(frontend: Frontend) -> None:
    node = await register(frontend, "gpu-1")
    headers = {"authorization": f"Bearer {frontend.admin_key}"}
    state = LiveState()
    async with open_stream(frontend.app, "/api/v1/live", headers=headers) as stream:
        assert await stream.next() == b"retry: 1000"
        await state.read_until_ready(stream)
    assert state.ready is not None
    assert state.ready["topics"] == ["summary", "attention", "nodes", "replicas", "operations", "loads"]
    assert list(state.topics) == state.ready["topics"]
    row = state.topics["nodes"][node]
    assert (row["name"], row["status"], row["kind"]) == ("gpu-1", "healthy", "localai")
    assert row["ram"] == {"total": 8, "used": 6, "reserved": 0}
    assert row["disk"] == {"total": None, "free": None}
    assert row["vram"]["total"] is None, "unknown is not nothing"
    assert state.topics["summary"]["fleet"]["nodes"]["healthy"] == 1


async def test_the_summary_says_what_the_stream_says(frontend: Frontend) -> None:
    await register(frontend, "gpu-1")
    answer = await frontend.call("GET", "/api/v1/fleet/summary")
    given = msgspec.json.decode(answer.body, type=FleetSummaryAnswer)
    async with reading(frontend, "summary,attention") as reader:
        assert reader.state.topics["summary"]["fleet"] == msgspec.to_builtins(given.summary)
        assert list(reader.state.topics["attention"]) == [item.id for item in given.attention]
    assert [item.kind for item in given.attention] == ["localai_limits"]


async def test_only_what_changed_is_told(frontend: Frontend) -> None:
    await register(frontend, "gpu-1")
    node = await register(frontend, "gpu-2")
    async with reading(frontend) as reader:
        await frontend.call("PATCH", f"/api/v1/nodes/{node}/labels", {"rack": "7"})
        event = await reader.change()
        assert (event.name, list(event.data["items"])) == ("change", [node])
        assert event.data["items"][node]["labels"]["rack"] == "7"
        assert await reader.is_quiet()


async def test_a_node_that_is_removed_is_gone(frontend: Frontend) -> None:
    await register(frontend, "gpu-1")
    node = await register(frontend, "gpu-2")
    async with reading(frontend) as reader:
        await frontend.call("DELETE", f"/api/v1/nodes/{node}")
        assert (await reader.change()).data["gone"] == [node]
        assert node not in reader.state.topics["nodes"]


async def test_heartbeats_are_seen_within_a_second_although_nobody_announces_them(
    frontend: Frontend, clock: ManualClock
) -> None:
    node = await register(frontend, "gpu-1")
    async with reading(frontend) as reader:
        await clock.advance(SECOND)
        beat = {"available_ram": 5}
        assert (await frontend.call("POST", f"/api/node/{node}/heartbeat", beat, key="tok")).status == 200
        await clock.advance(SECOND)
        assert (await reader.change()).data["items"][node]["ram"]["used"] == 3


async def test_markup_in_names_is_passed_on_as_text(frontend: Frontend) -> None:
    node = await register(frontend, NASTY)
    async with reading(frontend, "nodes,attention") as reader:
        assert reader.state.topics["nodes"][node]["name"] == NASTY
        assert any(NASTY in item["title"] for item in reader.state.topics["attention"].values())


# Coming back.


async def test_a_reader_that_comes_back_gets_only_what_it_missed(frontend: Frontend) -> None:
    await register(frontend, "gpu-1")
    async with reading(frontend, "nodes,summary") as reader:
        state = reader.state
    node = await register(frontend, "gpu-2")
    async with reading(frontend, "nodes,summary", after=state.place, state=state) as reader:
        told = {event.data["topic"]: list(event.data["items"]) for event in state.changes}
        assert told == {"nodes": [node], "summary": ["fleet"]}
        assert len(state.topics["nodes"]) == 2


async def test_it_may_come_back_by_the_query_too(frontend: Frontend) -> None:
    async with reading(frontend) as reader:
        place = reader.state.place
    async with reading(frontend, f"nodes&after={place}") as reader:
        assert reader.state.topics == {}, "nothing changed, so nothing is told"


async def test_at_another_hub_it_gets_snapshots(frontend: Frontend) -> None:
    node = await register(frontend, "gpu-1")
    async with reading(frontend) as reader:
        state = reader.state
    msgspec.structs.force_setattr(
        frontend.control.context, "live", LiveRoom(hub=new_hub(frontend), history=frontend.control.context.live.history)
    )
    state.topics["nodes"]["long gone"] = {}
    async with reading(frontend, after=state.place, state=state):
        assert list(state.topics["nodes"]) == [node], "the first frame voids what was known"


async def test_a_topic_more_is_told_whole_and_the_others_are_not(frontend: Frontend) -> None:
    node = await register(frontend, "gpu-1")
    async with reading(frontend, "nodes,loads") as reader:
        place = reader.state.place
    async with reading(frontend, f"nodes,loads,node:{node}", after=place) as reader:
        assert list(reader.state.topics) == [f"node:{node}"]
        detail = reader.state.topics[f"node:{node}"]
        assert set(detail) == {"detail", "cards", "work"}
        assert detail["detail"]["name"] == "gpu-1"


async def test_a_reader_that_was_cut_off_in_the_middle_is_told_the_rest(frontend: Frontend) -> None:
    """The place is on the last frame of a batch: before that, nothing counts as seen."""
    await register(frontend, "gpu-1")
    state = LiveState()
    headers = {"authorization": f"Bearer {frontend.admin_key}"}
    async with open_stream(frontend.app, "/api/v1/live", headers=headers) as stream:
        for _ in range(3):
            state.apply(await next_event(stream))
    assert state.place == ""


# Topics about one.


async def test_what_does_not_exist_is_missing_and_does_not_end_the_stream(frontend: Frontend) -> None:
    async with reading(frontend, "node:nobody,operation:nothing,summary") as reader:
        assert reader.state.topics["node:nobody"] == {}
        assert "fleet" in reader.state.topics["summary"]
    headers = {"authorization": f"Bearer {frontend.admin_key}"}
    async with open_stream(frontend.app, "/api/v1/live?topics=node:nobody", headers=headers) as stream:
        assert (await next_event(stream)).data["missing"] is True


async def test_a_node_that_is_drained_shows_how_far_that_is(frontend: Frontend) -> None:
    node = await register(frontend, "gpu-1")
    async with reading(frontend, f"node:{node}") as reader:
        await frontend.call("POST", f"/api/v1/nodes/{node}/drain")
        await reader.change()
        drain = reader.state.topics[f"node:{node}"]["drain"]
        assert (drain["state"], drain["replicas_left"]) == ("drained", 0)


# Events.


async def test_events_come_as_they_are_written_and_are_resumed_by_their_sequence(frontend: Frontend) -> None:
    node = await register(frontend, "gpu-1")
    async with reading(frontend, "events") as reader:
        state = reader.state
        newest = max(map(int, state.topics["events"]))
        await frontend.call("PATCH", f"/api/v1/nodes/{node}/labels", {"rack": "7"})
        event = await reader.change()
        assert list(event.data["items"]) == [str(newest + 1)]
        assert event.data["items"][str(newest + 1)]["kind"] == "node.labels"
    await frontend.call("PATCH", f"/api/v1/nodes/{node}/labels", {"rack": "8"})
    hub = new_hub(frontend)
    msgspec.structs.force_setattr(
        frontend.control.context, "live", LiveRoom(hub=hub, history=frontend.control.context.live.history)
    )
    async with reading(frontend, "events,nodes", after=state.place, state=state):
        events = state.topics["events"]
        assert sorted(map(int, events)) == list(range(min(map(int, events)), newest + 3)), "no gap, at another hub"


async def test_a_reader_of_a_database_that_was_restored_is_told_what_is_in_it(frontend: Frontend) -> None:
    """Its place is in a history that is no more, further than the present one goes."""
    await register(frontend, "gpu-1")
    state = LiveState()
    async with reading(frontend, "events", state=state):
        before = frozenset(state.topics["events"])
    place = replace(read_place(state.place), sequence=10**6)
    state.topics["events"]["1000000"] = {"kind": "node.removed"}
    async with reading(frontend, "events", after=str(place), state=state):
        assert frozenset(state.topics["events"]) == before


async def test_a_stream_of_events_goes_on_where_a_restored_database_ends(frontend: Frontend) -> None:
    headers = {"authorization": f"Bearer {frontend.admin_key}", "accept": "text/event-stream"}
    async with open_stream(frontend.app, "/api/v1/events?after=1000000", headers=headers) as stream:
        assert await stream.next() == b"retry: 2000"
        await register(frontend, "gpu-1")
        assert b"event: node." in await stream.next()


# Who may read.


@pytest.mark.parametrize(
    ("query", "named"), [("topics=nodez", "nodez"), ("topics=", "no topic"), ("topics=node:a%20b", "node:a b")]
)
async def test_a_topic_that_there_is_not_is_named(frontend: Frontend, query: str, named: str) -> None:
    answer = await frontend.call("GET", f"/api/v1/live?{query}")
    assert answer.status == 400
    error = msgspec.json.decode(answer.body)["error"]
    assert error["field"] == "topics"
    assert named in error["message"]


async def test_a_key_for_models_alone_sees_nothing_of_the_fleet(frontend: Frontend) -> None:
    ring = frontend.control.context.access.key_ring
    key = (await ring.create("app", [Scope.INFERENCE], by="test", lifetime=None)).key
    for path in ("/api/v1/live", "/api/v1/fleet/summary", "/api/v1/history"):
        assert (await frontend.call("GET", path, key=key)).status == 403


async def test_a_viewer_reads_all_topics(frontend: Frontend) -> None:
    ring = frontend.control.context.access.key_ring
    key = (await ring.create("eyes", [Scope.VIEWER], by="test", lifetime=None)).key
    async with reading(frontend, "summary,nodes,events", key=key) as reader:
        assert reader.state.ready is not None
        assert reader.state.ready["topics"] == ["summary", "nodes", "events"]


async def test_a_stream_ends_within_two_seconds_after_its_key_was_revoked(
    frontend: Frontend, clock: ManualClock
) -> None:
    ring = frontend.control.context.access.key_ring
    made = await ring.create("eyes", [Scope.VIEWER], by="test", lifetime=None)
    headers = {"authorization": f"Bearer {made.key}"}
    ended = asyncio.Event()

    async def read() -> None:
        await call(frontend.app, "GET", "/api/v1/live?topics=summary", headers=headers, leaves=asyncio.Event())
        ended.set()

    async with running(read(), name="reader"):
        await clock.until_sleeping(1)
        await ring.revoke(made.record.id, by="test")
        await clock.advance(2 * SECOND)
        await within_timeout(ended.wait(), lambda: "the stream to end")


# What it costs.


async def test_nobody_reads_and_nothing_is_asked_of_the_database(
    frontend: Frontend, statements: StatementCounter
) -> None:
    hub = frontend.control.context.live.hub
    async with reading(frontend, "summary"):
        pass
    with statements() as seen:
        for _ in range(5):
            await hub.look()
    assert seen == []
    assert hub.read_topics == frozenset()


async def test_many_nodes_cost_as_many_statements_as_one(
    frontend: Frontend, statements: StatementCounter, clock: ManualClock
) -> None:
    hub = frontend.control.context.live.hub
    topics = read_topics(None)
    counts = []
    for number in (1, 30):
        for more in range(number):
            await register(frontend, f"n{number}-{more}")
        await hub.refresh(topics)
        await clock.advance(timedelta(minutes=2))
        with statements() as seen:
            await hub.refresh(topics)
        counts.append(len(seen))
    assert counts[0] == counts[1]
    assert counts[0] <= 12


async def test_fifty_readers_cost_as_many_statements_as_one(
    frontend: Frontend, statements: StatementCounter, clock: ManualClock
) -> None:
    await register(frontend, "gpu-1")
    hub = frontend.control.context.live.hub
    async with reading(frontend, "nodes"):
        await clock.advance(2 * SECOND)
        with statements() as alone:
            await hub.refresh(hub.read_topics)
    stack = [reading(frontend, "nodes") for _ in range(50)]
    for opened in stack:
        await opened.__aenter__()
    await clock.advance(2 * SECOND)
    with statements() as together:
        await hub.refresh(hub.read_topics)
    for opened in stack:
        await opened.__aexit__(None, None, None)
    assert len(together) == len(alone)


async def test_readers_that_come_together_share_one_look(frontend: Frontend, statements: StatementCounter) -> None:
    await register(frontend, "gpu-1")
    hub, topics = frontend.control.context.live.hub, read_topics(None)
    with statements() as alone:
        await hub.begin(topics)
    with statements() as together:
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(hub.begin(topics))
    assert alone
    assert together == []


async def test_the_hub_looks_at_most_four_times_a_second_however_often_it_is_rung(
    frontend: Frontend, clock: ManualClock
) -> None:
    context = frontend.control.context
    looks = 0
    refresh = context.live.hub.refresh

    async def counted(topics: Iterable[Topic], *, max_age: timedelta = timedelta(0)) -> None:
        nonlocal looks
        looks += 1
        await refresh(topics, max_age=max_age)

    context.live.hub.refresh = counted  # type: ignore[method-assign]
    loop = context.live.loops(context.record)["live"]
    async with running(loop(), name="live"), reading(frontend, "summary"):
        looks = 0
        for _ in range(100):
            context.record.feed.ring()
            await clock.advance(SPACING / 25)
        assert 1 <= looks <= 5


# What goes wrong.


async def test_without_the_database_readers_stay_and_are_told_that_control_is_impaired(
    frontend: Frontend, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await register(frontend, "gpu-1")
    context = frontend.control.context

    async def away() -> object:
        raise DatabaseUnavailable("the database does not answer")

    async with reading(frontend, "summary,attention,nodes") as reader:
        monkeypatch.setattr(context.nodes.store, "marks", away)
        monkeypatch.setattr(context.readiness, "known", lambda: ["the database does not answer"])
        await clock.advance(SECOND)
        async with running(context.live.hub.look(), name="look"):  # type: ignore[arg-type]
            while reader.state.topics["summary"]["fleet"]["control"] != "impaired":
                reader.state.apply(await next_event(reader.stream))
        assert reader.state.topics["summary"]["fleet"]["nodes"]["healthy"] == 1, "what was known stays"
        monkeypatch.undo()
        await context.live.hub.refresh(context.live.hub.read_topics)
        while reader.state.topics["summary"]["fleet"]["control"] != "up":
            reader.state.apply(await next_event(reader.stream))


async def test_a_reader_that_does_not_read_is_skipped_forward_and_nothing_is_kept_for_it(frontend: Frontend) -> None:
    node = await register(frontend, "gpu-1")
    hub = frontend.control.context.live.hub
    state, gate = LiveState(), asyncio.Event()
    gate.set()
    headers = {"authorization": f"Bearer {frontend.admin_key}"}
    async with open_stream(frontend.app, "/api/v1/live?topics=nodes", headers=headers, gate=gate) as stream:
        await state.read_until_ready(stream)
        gate.clear()
        for number in range(100):
            await frontend.call("PATCH", f"/api/v1/nodes/{node}/labels", {"rack": str(number)})
            await hub.refresh(hub.read_topics)
        gate.set()
        while state.topics["nodes"][node]["labels"].get("rack") != "99":
            state.apply(await next_event(stream))
    assert len(state.changes) <= 2, "what it was held up with, and the latest"


async def test_hanging_up_leaves_nothing_behind(frontend: Frontend) -> None:
    hub = frontend.control.context.live.hub
    feed = frontend.control.context.record.feed
    before = len(feed._pokes)
    for _ in range(3):
        async with reading(frontend, "summary,nodes"), reading(frontend, "events"):
            assert hub.read_topics

    async def nobody() -> bool:
        return not hub.read_topics

    await eventually(nobody, "the readers to be gone")
    assert len(feed._pokes) == before
