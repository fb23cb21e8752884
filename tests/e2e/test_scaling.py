"""Rules of scheduling with real processes: a minimum on two machines, one of them killed, and down to nothing."""

from pathlib import Path
from typing import Any

from tests.kit.models import write_model
from tests.kit.serving import ServingFleet, serving_fleet
from tests.kit.waiting import eventually

MODEL = "parrot"


async def put(fleet: ServingFleet, **fields: Any) -> Any:
    answer = await fleet.control.call("PUT", f"/api/v1/scheduling/{MODEL}", fields)
    assert answer.status == 200, answer.body
    return answer.json()


async def until_on(fleet: ServingFleet, *nodes: str) -> None:
    async def are_there() -> bool:
        return sorted(replica.node for replica in await fleet.loaded(MODEL)) == sorted(nodes)

    await eventually(are_there, f"{MODEL} to be loaded on {', '.join(nodes) or 'no node'}")


async def test_a_minimum_survives_the_death_of_a_machine(tmp_path: Path) -> None:
    async with serving_fleet(tmp_path) as fleet:
        write_model(fleet.models, MODEL, backend="echo")

        async def is_known() -> bool:
            return (await fleet.control.call("GET", f"/api/v1/models/{MODEL}")).status == 200

        await eventually(is_known, "the file to be read")
        await put(fleet, min_replicas=2)
        await until_on(fleet, "w1", "w2")

        await fleet.workers["w1"].kill()
        await until_on(fleet, "w2")

        async def is_told() -> bool:
            answer: Any = (await fleet.control.call("GET", f"/api/v1/scheduling/{MODEL}")).json()
            return "one more fits nowhere: w1 is offline; w2 already has 1 of 1" in answer["problem"]

        await eventually(is_told, "the reason to be told")
        fleet.workers["w1"].start()
        await until_on(fleet, "w1", "w2")

        await put(fleet)
        answer = await fleet.control.call("POST", "/api/v1/model-unloads", {"name": MODEL})
        assert answer.status == 200, answer.body
        await until_on(fleet)
        assert (await fleet.question(model=MODEL).ask()).is_done
        assert len(await fleet.loaded(MODEL)) == 1
