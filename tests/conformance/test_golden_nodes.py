"""Registration, heartbeat and node administration as LocalAI's own binaries speak them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from corral.bus.port import Bus
from corral.frontend.nodes.decide.registration import AdmissionPolicy
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import SecretsKey
from tests.kit.clock import ManualClock
from tests.kit.frontend import Frontend, frontend_config, open_frontend
from tests.kit.golden import GoldenMessage, Player, read_recording

VECTORS = Path(__file__).parent / "vectors" / "nodes.json"
GOLDEN = Path(__file__).parents[3] / "shared" / "golden"

DELIBERATE: dict[tuple[str, str], str] = {
    (
        "http_register.json",
        "address of 300 characters passes validation but not the column (255)",
    ): "LocalAI's column is too short; ours holds what validation admits",
    (
        "http_register.json",
        "same name again",
    ): "a node without a secret that comes back at another address is pending until a person approves it again",
    ("http_register.json", "and it is healthy"): "a worker cannot approve itself by resuming: the node stays pending",
    ("http_admin.json", "PUT labels: the path parameter is stored as label `id`"): "the id is not a label",
    ("http_admin.json", "PATCH labels"): "the id is not a label",
}
"""Every answer that differs from LocalAI's on purpose, and why. There are no others."""

NOT_YET = ("/api/nodes/models", "/backends", "/models", "/backend-logs")
"""Parts of node routes whose rooms come later: replicas, backends, logs."""


@pytest.fixture
async def player(database: Database, bus: Bus, tmp_path: Path) -> AsyncIterator[Player]:
    clock = ManualClock()
    key = SecretsKey.generate()
    careful = frontend_config(tmp_path)
    trusting = frontend_config(tmp_path, admission=AdmissionPolicy(auto_approve=True))
    async with (
        open_frontend(database, clock, bus, careful, key=key) as one,
        open_frontend(database, clock, bus, trusting, key=key) as other,
    ):
        yield Player(frontends={False: one, True: other})


async def play(player: Player, recording: list[GoldenMessage]) -> dict[str, list[str]]:
    return {str(recorded): found for recorded in recording if (found := await player.play(recorded))}


async def test_our_own_vectors_are_answered_alike(player: Player) -> None:
    assert await play(player, read_recording(VECTORS)) == {}


def test_the_recordings_are_beside_the_checkout_in_ci(golden: Path) -> None:
    assert (golden / "README.md").is_file()


async def test_every_recorded_registration_and_heartbeat_is_answered_alike(player: Player, golden: Path) -> None:
    await _pending_node(player, "77ea45d6-8ecf-4adc-91ec-06d37cc89656")
    recording = [*read_recording(golden / "http_register.json"), *read_recording(golden / "http_heartbeat.json")]
    from_localai = [recorded for recorded in recording if _is_localai_s_answer(recorded)]
    accepted = [recorded for recorded in recording if not _is_localai_s_answer(recorded)]

    found = await play(player, from_localai)

    assert set(found) == {str(recorded) for recorded in from_localai if _is_deliberate(recorded)}
    await _accepts_what_workers_send(player, accepted)


async def test_every_recorded_node_administration_is_answered_alike(player: Player, golden: Path) -> None:
    recording = [recorded for recorded in read_recording(golden / "http_admin.json") if _is_built(recorded)]
    assert len(recording) == 22
    found = {}
    for recorded in recording:
        await _known_nodes(player, recorded)
        if differences := await player.play(recorded):
            found[str(recorded)] = differences

    assert set(found) == {str(recorded) for recorded in recording if _is_deliberate(recorded)}, found


def _is_localai_s_answer(recorded: GoldenMessage) -> bool:
    return bool(recorded.message["direction"].endswith("LocalAI frontend"))


def _is_deliberate(recorded: GoldenMessage) -> bool:
    return (recorded.file, recorded.message.get("note", "")) in DELIBERATE


def _is_built(recorded: GoldenMessage) -> bool:
    path = recorded.message["path"]
    return path.startswith("/api/nodes") and not any(part in path for part in NOT_YET)


async def _accepts_what_workers_send(player: Player, recording: list[GoldenMessage]) -> None:
    """The answers here came from a throw-away peer; the requests are a real worker's."""
    for recorded in recording:
        if "register" in recorded.message["path"]:
            recorded.message["response"].pop("error", None)  # type: ignore[attr-defined]
        answer = await player._send(recorded.message)
        assert answer.status in (200, 201), str(recorded)
        if answer.status == 201:
            player.ours["11111111-2222-4333-8444-555555555555"] = answer.json()["id"]


async def _pending_node(player: Player, recorded_id: str) -> None:
    answer = await player.frontends[False].register({"name": "waits", "address": "127.0.0.1:22901"})
    player.ours[recorded_id] = _object(answer.json())["id"]


async def _known_nodes(player: Player, recorded: GoldenMessage) -> None:
    """Nodes that the recording takes for granted: the two of the list, and others when they are first spoken of."""
    message = recorded.message
    if message["path"] == "/api/nodes" and message["status"] == 200:
        for node in message["response"]:
            await _register(player, node)
    elif message["status"] < 404 and message["status"] != 401 and "/scheduling" not in message["path"]:
        id = message["path"].split("/")[3]
        if id not in player.ours:
            await _register(player, {"id": id, "name": f"node {id[:8]}", "address": "127.0.0.1:1"})


async def _register(player: Player, node: dict[str, Any]) -> None:
    fields = (
        "name",
        "address",
        "http_address",
        "total_ram",
        "available_ram",
        "total_disk",
        "available_disk",
        "capability",
    )
    body = {name: node[name] for name in fields if name in node}
    answer = await player.frontends[True].register({**body, "labels": node.get("labels", {})})
    player.ours[node["id"]] = _object(answer.json())["id"]


def _object(document: object) -> dict[str, Any]:
    assert isinstance(document, dict)
    return document


def _frontend(player: Player) -> Frontend:
    return player.frontends[False]
