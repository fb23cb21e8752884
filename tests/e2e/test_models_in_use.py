"""A model in use while its backend is upgraded, and then removed: with real processes, by what clients see."""

from pathlib import Path

import msgspec

from corral.frontend.operations.decide.operation import OperationState
from corral.wire.operation_views import OperationView
from tests.kit.backend_scripts import write_backend
from tests.kit.backends import BACKENDS
from tests.kit.models import write_model
from tests.kit.serving import ServingFleet, serving_fleet
from tests.kit.waiting import eventually

MODEL = "parrot"
BACKEND = "echoing"


async def done(fleet: ServingFleet, method: str, path: str, body: object = None) -> OperationView:
    """An operation that was asked for, once it is."""
    answer = await fleet.control.call(method, path, body)
    assert answer.status == 202, answer.body
    id = msgspec.json.decode(answer.body)["id"]

    async def over() -> OperationView | None:
        found = (await fleet.control.call("GET", f"/api/v1/operations/{id}")).body
        operation = msgspec.json.decode(found, type=OperationView)
        return operation if operation.state == OperationState.DONE else None

    return await eventually(over, f"{method} {path} to be done", seconds=120)


async def listed(fleet: ServingFleet) -> list[str]:
    headers = {"Authorization": f"Bearer {fleet.gateway.admin_key}"}
    async with fleet.session.get(f"{fleet.gateway.url}/v1/models", headers=headers) as answer:
        return [one["id"] for one in msgspec.json.decode(await answer.read())["data"]]


async def test_a_replica_comes_back_after_an_upgrade_and_a_removed_model_does_not(tmp_path: Path) -> None:
    source = write_backend(tmp_path / "sources", BACKEND, shell=f'exec {BACKENDS}/echo/run.sh "$@"')
    wanted = {"backend": BACKEND, "name": BACKEND, "uri": str(source)}
    async with serving_fleet(tmp_path, beat_seconds=5) as fleet:  # a slow machine makes no node silent
        await done(fleet, "POST", "/api/v1/operations", {"verb": "install", **wanted})
        write_model(fleet.models, MODEL, backend=BACKEND)
        (fleet.models / "parrot.gguf").touch()
        question = fleet.question(model=MODEL)

        async def is_served() -> bool:
            return (await question.ask()).is_served

        await eventually(is_served, "the first answer", seconds=120)
        (before,) = await fleet.loaded(MODEL)

        await done(fleet, "POST", "/api/v1/operations", {"verb": "upgrade", **wanted})

        async def is_back() -> bool:
            return [one.node for one in await fleet.loaded(MODEL) if one.id != before.id] == [before.node]

        await eventually(is_back, "the replica to be loaded again on its node", seconds=120)
        await eventually(is_served, "an answer after the upgrade", seconds=120)

        removed = await done(fleet, "DELETE", f"/api/v1/models/{MODEL}")
        assert [target.message for target in removed.targets] == ["told", "told"]

        async def is_gone() -> bool:
            return MODEL not in await listed(fleet) and not list(fleet.models.glob(f"{MODEL}*"))

        await eventually(is_gone, "the model to be gone from lists and disk", seconds=60)
        assert (await question.ask()).status == 404
