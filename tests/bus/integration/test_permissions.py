"""Who may say and hear what on a server with the users of the guide, and how a refusal reaches whoever caused it."""

import asyncio
import json
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client

from corral.base.errors import BusPermissionDenied
from corral.bus import client, link
from corral.bus.port import Message
from corral.bus.problems import ProblemKind
from tests.kit.plain_nats import PlainNats
from tests.kit.waiting import eventually

LONG = timedelta(seconds=20)


async def echo(message: Message) -> None:
    await message.respond(message.data)


@pytest.mark.parametrize("subject", ["_INBOX.>", "_INBOX.abc.*", "corral.>", "corral.view", ">", "gallery.*.progress"])
async def test_a_worker_hears_neither_answers_to_others_nor_frontends(
    server: PlainNats, open_bus: Any, subject: str
) -> None:
    worker = await open_bus(server.worker_url)

    with pytest.raises(BusPermissionDenied) as denied:
        await worker.bus.subscribe(subject, echo)

    assert denied.value.fields == {"subject": subject}
    assert worker.problems.empty(), "the caller knows already"
    await worker.bus.subscribe("nodes.n1.>", echo)


async def test_a_refused_queue_subscription_is_refused_at_once_too(server: PlainNats, open_bus: Any) -> None:
    worker = await open_bus(server.worker_url)
    with pytest.raises(BusPermissionDenied):
        await worker.bus.subscribe("corral.view", echo, queue="frontends")


async def test_upper_case_letters_do_not_hide_a_refusal(server: PlainNats, open_bus: Any) -> None:
    worker = await open_bus(server.worker_url)
    with pytest.raises(BusPermissionDenied):
        await worker.bus.subscribe("Corral.VIEW.Ünicode", echo)


async def test_a_refused_subscription_is_not_made_again_on_the_next_connection(
    server: PlainNats, open_bus: Any
) -> None:
    worker = await open_bus(server.worker_url)
    with pytest.raises(BusPermissionDenied):
        await worker.bus.subscribe("corral.view", echo)
    await worker.becomes(connected=True)
    await server.kill()
    await worker.becomes(connected=False)
    await server.start()
    await worker.becomes(connected=True)
    await worker.bus.flush()
    assert worker.bus.problems.counts[ProblemKind.PERMISSION_DENIED] == 0


async def test_a_refused_message_is_logged_counted_and_told(
    server: PlainNats, open_bus: Any, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await open_bus(server.worker_url)

    await worker.bus.publish("corral.poke", b"")

    problem = await worker.has(ProblemKind.PERMISSION_DENIED)
    assert problem.subject == "corral.poke"
    assert worker.bus.problems.counts[ProblemKind.PERMISSION_DENIED] == 1
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert worker.bus.connected


async def test_a_refused_request_fails_without_waiting(server: PlainNats, open_bus: Any) -> None:
    worker = await open_bus(server.worker_url, inbox_prefix="nodes.inbox")
    with pytest.raises(BusPermissionDenied):
        await worker.bus.request("corral.question", b"", timeout=timedelta(hours=1))


async def test_who_may_not_hear_answers_is_told_when_asking(server: PlainNats, open_bus: Any) -> None:
    """Again at the second request, when the first one's subscription has been refused already."""
    worker = await open_bus(server.worker_url)
    for _ in range(2):
        with pytest.raises(BusPermissionDenied):
            await worker.bus.request("nodes.n1.corral.replica.question", b"", timeout=timedelta(hours=1))


async def test_a_subscription_that_is_refused_later_is_told(server: PlainNats, open_bus: Any, tmp_path: Path) -> None:
    """The permissions change while the server is away; the subscription is kept for when they change back."""
    worker = await open_bus(server.worker_url)
    await worker.bus.subscribe("nodes.n1.backend.list", echo)
    await worker.becomes(connected=True)
    config = tmp_path / "nats" / "nats-server.conf"
    allowed = config.read_text()
    settings = json.loads(allowed)
    settings["authorization"]["users"][1]["permissions"]["subscribe"] = ["nodes.other.>"]
    await server.kill()
    await worker.becomes(connected=False)
    config.write_text(json.dumps(settings))
    await server.start()

    problem = await worker.has(ProblemKind.PERMISSION_DENIED)
    assert problem.subject == "nodes.n1.backend.list"
    await worker.becomes(connected=True)
    assert worker.bus.refused == {"nodes.n1.backend.list"}

    await server.kill()
    await worker.becomes(connected=False)
    config.write_text(allowed)
    await server.start()
    await worker.becomes(connected=True)
    frontend = await open_bus(server.frontend_url)
    assert await frontend.bus.request("nodes.n1.backend.list", b"?", timeout=LONG) == b"?"
    assert worker.bus.refused == frozenset()


async def test_a_refused_subscription_is_asked_for_again_on_the_same_connection(
    server: PlainNats, open_bus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator gives the permission back and has the server read its configuration: no connection is lost."""
    monkeypatch.setattr(client, "_HEARTBEAT", timedelta(milliseconds=50))
    worker = await open_bus(server.worker_url)
    await worker.bus.subscribe("nodes.n1.backend.list", echo)
    config = tmp_path / "nats" / "nats-server.conf"
    allowed = config.read_text()
    settings = json.loads(allowed)
    settings["authorization"]["users"][1]["permissions"]["subscribe"] = ["nodes.other.>"]
    await server.kill()
    config.write_text(json.dumps(settings))
    await server.start()
    await worker.has(ProblemKind.PERMISSION_DENIED)
    await worker.bus.wait_connected()
    assert worker.bus.refused == {"nodes.n1.backend.list"}

    config.write_text(allowed)
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGHUP)

    async def is_heard() -> bool:
        return not worker.bus.refused

    await eventually(is_heard, "the subscription to be allowed")
    frontend = await open_bus(server.frontend_url)
    assert await frontend.bus.request("nodes.n1.backend.list", b"?", timeout=LONG) == b"?"


async def test_a_worker_may_say_what_its_work_needs(server: PlainNats, open_bus: Any, heard: Any) -> None:
    frontend = await open_bus(server.frontend_url)
    worker = await open_bus(server.worker_url, inbox_prefix="nodes.inbox")
    await frontend.bus.subscribe("nodes.>", heard)
    subjects = [
        "nodes.n1.backend.install.op.progress",
        "nodes.n1.corral.replica.exited",
        "nodes.n1.corral.inventory",
    ]
    for subject in subjects:
        await worker.bus.publish(subject, b"")

    assert [(await heard.next()).subject for _ in subjects] == subjects
    assert worker.problems.empty()


@pytest.mark.parametrize(
    "subject",
    [
        "nodes.n1.backend.install",
        "nodes.n1.corral.backend.rollback",
        "gallery.op.progress",
        "staging.model.progress",
        "state.finetune-jobs.delta",
        "cache.invalidate.models",
        "prefixcache.observe",
        "responses.r1.cancel",
        "agent.execute",
        "jobs.new",
        "mcp.discovery",
        "finetune.job.progress",
        "corral.poke",
    ],
)
async def test_a_frontend_may_say_and_hear_all_of_its_subjects(
    server: PlainNats, open_bus: Any, heard: Any, subject: str
) -> None:
    frontend = await open_bus(server.frontend_url)
    await frontend.bus.subscribe(subject, heard)
    await frontend.bus.publish(subject, b"")
    assert (await heard.next()).subject == subject


async def test_a_frontend_is_not_almighty(server: PlainNats, open_bus: Any) -> None:
    frontend = await open_bus(server.frontend_url)
    for subject in ("_INBOX.elsewhere", "$SYS.>", "elsewhere"):
        with pytest.raises(BusPermissionDenied):
            await frontend.bus.subscribe(subject, echo)


@pytest.mark.parametrize("login", ["", "stranger:password@", "worker:@", "token@"])
async def test_strangers_are_refused(server: PlainNats, open_bus: Any, login: str) -> None:
    stranger = await open_bus(f"nats://{login}127.0.0.1:{server.port}")
    await stranger.has(ProblemKind.UNAUTHORIZED)
    assert not stranger.bus.connected


async def test_a_plain_client_without_credentials_is_refused(server: PlainNats) -> None:
    refused = asyncio.Event()

    async def on_error(error: Exception) -> None:
        if "authorization" in str(error).lower():
            refused.set()

    client = Client()
    with pytest.raises(nats.errors.Error):
        await client.connect(f"nats://127.0.0.1:{server.port}", allow_reconnect=False, error_cb=on_error)
    await client.close()
    assert refused.is_set()


async def test_an_unmodified_worker_serves_a_frontend(server: PlainNats, open_bus: Any) -> None:
    """As a LocalAI worker does it: plain subscriptions, answers to `_INBOX`, progress while it works."""
    frontend = await open_bus(server.frontend_url)
    progress: asyncio.Queue[bytes] = asyncio.Queue()

    async def on_progress(message: Message) -> None:
        progress.put_nowait(message.data)

    await frontend.bus.subscribe("nodes.n1.backend.install.op1.progress", on_progress)
    worker = await nats.connect(server.worker_url)

    async def on_list(message: Any) -> None:
        await message.respond(b'{"backends": null}')

    async def on_install(message: Any) -> None:
        await worker.publish("nodes.n1.backend.install.op1.progress", b'{"percentage": 50}')
        await message.respond(b'{"success": true}')

    await worker.subscribe("nodes.n1.backend.list", cb=on_list)
    await worker.subscribe("nodes.n1.backend.install", cb=on_install)
    for _ in range(2):  # the library's ping overtakes what it should confirm, so the first one confirms nothing
        await worker.flush()
    try:
        assert await frontend.bus.request("nodes.n1.backend.list", b"{}", timeout=LONG) == b'{"backends": null}'
        assert await frontend.bus.request("nodes.n1.backend.install", b"{}", timeout=LONG) == b'{"success": true}'
        assert await progress.get() == b'{"percentage": 50}'
    finally:
        await worker.close()
        for _ in range(3):
            await asyncio.sleep(0)


def test_the_refusal_pattern_reads_what_the_server_writes() -> None:
    found = link._VIOLATION.search('nats: permissions violation for subscription to "a.b" using queue "q"')
    assert found is not None
    assert found.groups() == ("subscription", "a.b")
