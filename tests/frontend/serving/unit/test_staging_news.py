"""What other frontends hear of files on their way to a node."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.base.ids import NodeId
from corral.bus.port import Bus, Message
from corral.frontend.models.local_files import LocalFile
from corral.frontend.serving.staging.broadcasts import StagingNews, sized, staging_status
from corral.frontend.serving.staging.service import StagingWatch
from tests.kit.bus import MemoryBus, MemoryServer
from tests.kit.clock import ManualClock
from tests.kit.waiting import eventually

NODE = NodeId("n1")


async def name_of(_: NodeId) -> str:
    return "w2"


@pytest.fixture
async def heard(bus: Bus) -> list[Any]:
    messages: list[Any] = []

    async def on_message(message: Message) -> None:
        messages.append((message.subject, json.loads(message.data)))

    await bus.subscribe("staging.*.progress", on_message)
    return messages


async def is_over(heard: list[Any]) -> bool:
    return bool(heard) and heard[-1][1]["done"]


def watch_of(clock: ManualClock) -> StagingWatch:
    watch = StagingWatch(clock)
    watch.expect([LocalFile(path="sub/m.bin", size=3_000_000)])
    return watch


async def test_a_staging_is_told_as_localais_frontends_tell_it(bus: Bus, heard: list[Any], golden: Path) -> None:
    clock = ManualClock()
    watch = watch_of(clock)
    async with StagingNews(bus, clock, name_of).told("my.model", NODE, watch):
        watch.begin("sub/m.bin")
        watch.sent("sub/m.bin", 32_768)
        await clock.until_sleeping(1)
        await clock.advance(timedelta(seconds=1))
        await clock.until_sleeping(1)
        watch.done("sub/m.bin")
    await eventually(lambda: is_over(heard), "the last word")

    recorded = json.loads((golden / "nats_staging_progress.json").read_text())["messages"]
    start, tick, whole, done = (entry["payload"] for entry in recorded[:4])
    subjects, told = zip(*heard, strict=True)
    assert set(subjects) == {"staging.my-model.progress"}
    assert [message.get("status", {}).keys() for message in told] == [
        each.get("status", {}).keys() for each in (start, tick, whole, done)
    ]
    assert told[0]["status"] | {"started_at": ""} == start["status"] | {"model_id": "my.model", "started_at": ""}
    assert told[1]["status"]["progress"] == pytest.approx(tick["status"]["progress"])
    assert told[1]["status"]["message"] == "m.bin (32.0 KB / 2.9 MB, 32.0 KB/s)"
    assert (told[2]["status"]["progress"], told[2]["status"]["file_index"]) == (100, 1)
    assert told[3] == {"model_id": "my.model", "done": True}


async def test_a_failure_ends_it_too(bus: Bus, heard: list[Any]) -> None:
    clock = ManualClock()
    with pytest.raises(RuntimeError):
        async with StagingNews(bus, clock, name_of).told("m", NODE, watch_of(clock)):
            raise RuntimeError
    await eventually(lambda: is_over(heard), "the last word")
    assert heard[-1][1] == {"model_id": "m", "done": True}


async def test_a_bus_that_is_away_hinders_nothing() -> None:
    server, clock = MemoryServer(), ManualClock()
    async with MemoryBus(server) as bus:
        server.go_down()
        async with StagingNews(bus, clock, name_of).told("m", NODE, watch_of(clock)):
            pass


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (32768, "32.0 KB"), (3_000_000, "2.9 MB"), (2**45, "32.0 TB")]
)
def test_sizes_have_localais_names(count: int, text: str) -> None:
    assert sized(count) == text


def test_before_the_first_file_there_is_nothing_to_tell() -> None:
    status = staging_status("m", "n", StagingWatch(ManualClock()).count, None, started_at="t")
    assert (status.message, status.progress, status.file_index) == ("Preparing to stage model files", 0, 0)
