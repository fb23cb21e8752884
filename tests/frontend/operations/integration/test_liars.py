"""Workers whose words and disks differ: what an operator sees of each, in Corral's view and in LocalAI's.

The same is told to people in docs/guides/operate-backends.md.
"""

from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
import pytest

from corral.wire.broadcasts import OperationStatus
from corral.wire.go_json import format_time
from corral.wire.operation_views import JobStatus, OperationItems, OperationView
from tests.kit.clock import START
from tests.kit.simulated_backends import Faults, SimulatedBackends
from tests.kit.world import World

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""The other database is for the tests of what is stored."""

INSTALL = {"verb": "install", "backend": "echo"}
REINSTALL = {"verb": "install", "backend": "echo", "force": True}
UPGRADE = {"verb": "upgrade", "backend": "echo"}
DELETE = {"verb": "delete", "backend": "echo"}


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is shown after one attempt."""

    state: str
    status: str
    message: str
    code: str
    attempts: int = 0
    error: bool = False
    """Whether LocalAI's clients are told of an error: then the operation stays in their list."""


@dataclass(frozen=True, kw_only=True)
class Case:
    asked: dict[str, object]
    seen: Seen
    faults: Faults = field(default_factory=Faults)
    is_corral: bool = True


def contradicted(what: str) -> Seen:
    message = f"the node says that it is done, but {what}"
    return Seen(state="failed", status="error", message=message, code="contradicted", attempts=1, error=True)


def proven(how: str) -> Seen:
    return Seen(state="done", status="success", message=how, code="proven")


STILL = f"echo is still the one of {format_time(START)}"
UNPROVABLE = "the node tells neither a digest nor a date of echo: nothing can prove that it was replaced"

CASES = {
    "install, success without change": Case(
        asked=INSTALL, faults=Faults(boasts=True), seen=contradicted("the node does not have echo")
    ),
    "reinstall, success without change": Case(asked=REINSTALL, faults=Faults(boasts=True), seen=contradicted(STILL)),
    "upgrade, success without change": Case(asked=UPGRADE, faults=Faults(boasts=True), seen=contradicted(STILL)),
    "delete, success without change": Case(
        asked=DELETE, faults=Faults(boasts=True), seen=contradicted("the node still has echo")
    ),
    "reinstall, new digest and old date": Case(
        asked=REINSTALL, faults=Faults(backdates=True), seen=contradicted(STILL)
    ),
    "install, neither digests nor dates": Case(
        asked=INSTALL, faults=Faults(undated=True), is_corral=False, seen=proven("present")
    ),
    "upgrade, neither digests nor dates": Case(
        asked=UPGRADE,
        faults=Faults(undated=True),
        is_corral=False,
        seen=Seen(state="failed", status="blocked", message=UNPROVABLE, code="unprovable", error=True),
    ),
    "upgrade, no digests": Case(asked=UPGRADE, is_corral=False, seen=proven("renewed")),
    "install, error although installed": Case(asked=INSTALL, faults=Faults(modest=True), seen=proven("present")),
    "upgrade, error although upgraded": Case(asked=UPGRADE, faults=Faults(modest=True), seen=proven("renewed")),
    "delete, error although deleted": Case(asked=DELETE, faults=Faults(modest=True), seen=proven("absent")),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_what_an_operator_sees_of_a_liar(world: World, case: Case) -> None:
    node = await world.backends("w", is_corral=case.is_corral)
    if case.asked is not INSTALL:
        await _has_echo(world)
    node.faults, node.digest = case.faults, "sha256:2"
    id = await _ask(world, case.asked)
    await world.control.context.operations.dispatcher.tick()

    native = await _native(world, id)
    (target,) = native.targets
    assert (native.state, target.status, target.message, target.reason_code, target.attempts) == (
        case.seen.state,
        case.seen.status,
        case.seen.message,
        case.seen.code,
        case.seen.attempts,
    )
    assert await _localais_error(world, id) == (f"w: {case.seen.message}" if case.seen.error else "")
    await _is_not_tried_again_at_once(world, node)


async def _has_echo(world: World) -> None:
    await _ask(world, INSTALL)
    await world.control.context.operations.dispatcher.tick()
    await world.clock.advance(timedelta(minutes=2))
    await world.frontend.settle()


async def _ask(world: World, asked: dict[str, object]) -> str:
    answer = await world.frontend.call("POST", "/api/v1/operations", asked)
    assert answer.status == 202, answer.body
    return msgspec.json.decode(answer.body, type=OperationView).id


async def _native(world: World, id: str) -> OperationView:
    answer = await world.frontend.call("GET", f"/api/v1/operations/{id}")
    return msgspec.json.decode(answer.body, type=OperationView)


async def _localais_error(world: World, id: str) -> str:
    """The same in all of LocalAI's views, in which everything is over."""
    job = msgspec.json.decode((await world.frontend.call("GET", f"/api/backends/job/{id}")).body, type=JobStatus)
    whole = msgspec.json.decode((await world.frontend.call("GET", f"/backends/jobs/{id}")).body, type=OperationStatus)
    listed = msgspec.json.decode((await world.frontend.call("GET", "/api/operations")).body, type=OperationItems)
    assert (job.processed, whole.processed) == (True, True)
    error = job.error if isinstance(job.error, str) else ""
    assert whole.error == error
    assert [one.error for one in listed.operations] == ([error] if error else [])
    if not error:
        assert (job.completed, job.progress) == (True, 100)
    return error


async def _is_not_tried_again_at_once(world: World, node: SimulatedBackends) -> None:
    asked = len(node.requests)
    await world.control.context.operations.dispatcher.tick()
    assert len(node.requests) == asked


async def test_a_liar_that_comes_to_its_senses_is_believed_at_the_next_attempt(world: World) -> None:
    node = await world.backends("w")
    await _has_echo(world)
    node.faults.backdates = True
    id = await _ask(world, REINSTALL)
    await world.control.context.operations.dispatcher.tick()
    node.faults.backdates = False
    await world.clock.advance(timedelta(seconds=31))
    await world.frontend.settle()
    await world.control.context.operations.dispatcher.tick()
    assert ((await _native(world, id)).state, node.written["echo"]) == ("done", 3)


async def test_ten_lies_block_and_a_retry_begins_anew(world: World) -> None:
    node = await world.backends("w")
    node.faults.boasts = True
    id = await _ask(world, INSTALL)
    for _ in range(10):
        await world.control.context.operations.dispatcher.tick()
        await world.clock.advance(timedelta(minutes=16))
        await world.frontend.settle()
    native = await _native(world, id)
    assert [(one.status, one.attempts) for one in native.targets] == [("blocked", 10)]
    node.faults.boasts = False
    retried = await world.frontend.call("POST", f"/api/v1/operations/{id}/retry")
    assert retried.status == 200
    await world.control.context.operations.dispatcher.tick()
    native = await _native(world, id)
    assert [(one.status, one.message) for one in native.targets] == [("success", "present")]
