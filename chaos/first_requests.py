"""A model that nobody has asked for yet, and then everybody at once: one load, and an answer for each."""

from typing import Final

from chaos.round import Workshop
from corral.base.tasks import task_group
from corral.frontend.record.decide import EventKind
from tests.kit.load_clients import counted
from tests.kit.serving import MODEL, serving_fleet

CLIENTS: Final = 100


async def at_once(workshop: Workshop) -> None:
    """One step, however many were asked for: the model is cold only once."""
    async with serving_fleet(workshop.directory) as fleet:
        question = fleet.question(tokens=1)
        async with task_group() as group:
            asking = [group.create_task(question.ask(), name=f"client {number}") for number in range(CLIENTS)]
        answers = [task.result() for task in asking]
        assert all(answer.is_served for answer in answers), counted(answers)
        loads = await fleet.events(EventKind.MODEL_LOADED)
        assert len(loads) == 1, loads
        replicas = (await fleet.model()).replicas
        assert len(replicas) == 1, replicas
        processes = [line for line in fleet.backend_processes().values() if f"--model-name {MODEL}" in line]
        assert len(processes) == 1, processes
        waits = sorted(answer.seconds for answer in answers)
        workshop.story.measure(
            f"{CLIENTS} simultaneous first requests: {counted(answers)}, {len(loads)} load, {len(processes)} process;"
            f" the first answer after {waits[0]:.1f} s, the last after {waits[-1]:.1f} s"
        )
