"""Each backend process has a token of its own: what it is started with, who is told, and what it opens."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from corral.base.ids import NodeId
from corral.rpc.backend import Backend
from corral.rpc.errors import TokenRefused
from corral.wire.backends import CorralInstall, InstallRequest
from corral.worker.membership.registration import AcceptedRegistration, Presence
from corral.worker.processes.process import TOKEN_VARIABLE, Launch
from tests.kit.backend_node import BackendNode
from tests.kit.clock import ManualClock
from tests.kit.ports import lasting_range

NODE_SECRET = "the-secret-of-this-node"
SHARED = "the-token-that-all-nodes-share"
SOON = timedelta(seconds=20)
OWN = CorralInstall(own_token=True)


class TokenRig:
    """A node that is a member of some frontend."""

    def __init__(self, folder: Path) -> None:
        self.presence = Presence()
        self.node = BackendNode(
            folder=folder, clock=ManualClock(), ranges=[lasting_range(6)], tokens=self.presence.process_token
        )

    def join(self, *, is_corral: bool = True) -> None:
        bearer = NODE_SECRET if is_corral else SHARED
        self.presence.member = AcceptedRegistration(node_id=NodeId("n1"), bearer=bearer, is_corral=is_corral)

    async def install(self, model: str, corral: CorralInstall | None = OWN) -> Launch:
        request = InstallRequest(backend="echo", model_id=model)
        if corral is not None:
            request.corral = corral
        return await self.node.deliver(request)

    def environment(self, launch: Launch) -> dict[str, str]:
        """What the process itself, and everybody who may look at it, reads there."""
        process = self.node.supervisor.find(launch.key)
        assert process is not None
        return psutil.Process(process.pid).environ()

    async def told(self, subject: str, request: bytes = b"{}") -> Any:
        answer = await self.node.ask(subject, request)
        assert answer is not None
        return json.loads(answer)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[TokenRig]:
    rig = TokenRig(tmp_path)
    async with rig.node:
        yield rig


async def opens(launch: Launch, token: str) -> bool:
    """Whether a process takes calls with this token. Health is open to everybody; that is LocalAI's protocol."""
    async with Backend(launch.address, token=token) as backend:
        try:
            await backend.free(timeout=SOON)
        except TokenRefused:
            return False
    return True


async def test_no_process_has_the_secret_of_its_node(rig: TokenRig) -> None:
    rig.join()
    launches = [await rig.install("m1"), await rig.install("m2"), await rig.install("", None)]
    environments = [rig.environment(launch) for launch in launches]
    assert all(NODE_SECRET not in json.dumps(environment) for environment in environments)
    assert len({environment[TOKEN_VARIABLE] for environment in environments}) == 3


async def test_a_token_opens_its_own_process_only(rig: TokenRig) -> None:
    rig.join()
    first, second = await rig.install("m1"), await rig.install("m2")
    assert await opens(first, first.token)
    assert not await opens(second, first.token)
    assert not await opens(first, NODE_SECRET)


async def test_the_frontend_is_told_the_token_with_the_process(rig: TokenRig) -> None:
    rig.join()
    request = b'{"backend": "echo", "model_id": "m1", "corral": {"own_token": true}}'
    reply = await rig.told("backend.install", request)
    (launch,) = rig.node.supervisor.running()
    assert reply["corral"] == {"url": "", "key": launch.http_key, "token": launch.token, "adapted": True}
    running = await rig.told("models.running")
    assert [model["corral"]["token"] for model in running["models"]] == [launch.token]
    assert (await rig.told("backend.install", request))["corral"]["token"] == launch.token


async def test_a_restarted_process_has_another_token(rig: TokenRig) -> None:
    rig.join()
    first = await rig.install("m1")
    await rig.node.supervisor.stop([first.key], force=True)
    assert (await rig.install("m1")).token != first.token


async def test_a_localai_frontend_gets_what_its_protocol_demands(rig: TokenRig) -> None:
    rig.join(is_corral=False)
    for model in ("m1", ""):
        launch = await rig.install(model, None)
        assert rig.environment(launch)[TOKEN_VARIABLE] == SHARED
        assert await opens(launch, SHARED)
    running = await rig.told("models.running")
    assert all("corral" not in model for model in running["models"])


async def test_a_frontend_from_before_tokens_can_still_load(rig: TokenRig) -> None:
    """It presents the node's secret, and knows of nothing else. No answer tells that secret."""
    rig.join()
    launch = await rig.install("m1", None)
    assert await opens(launch, NODE_SECRET)
    assert NODE_SECRET not in json.dumps(await rig.told("models.running"))


async def test_the_protocol_stays_while_the_frontend_has_forgotten_the_node(rig: TokenRig) -> None:
    rig.join(is_corral=False)
    rig.presence.member = None
    assert (await rig.install("", None)).token == SHARED
