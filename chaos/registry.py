"""The registry against its model, with stories that a seed decides."""

import asyncio

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from chaos.registry_model import RegistryMachine
from chaos.round import Workshop

_STEPS_OF_A_STORY = 30


async def against_its_model(workshop: Workshop) -> None:
    """In a thread, because each story has an event loop of its own."""
    await asyncio.to_thread(_run, workshop)


def _run(workshop: Workshop) -> None:
    stories = max(1, workshop.steps // _STEPS_OF_A_STORY)

    class Told(RegistryMachine):
        source = workshop.databases

        def teardown(self) -> None:
            workshop.story.tell(f"a story that ended with {len(self.state)} nodes and {self.last_event} events")
            super().teardown()

    chosen = seed(workshop.random.randrange(2**32))(Told)
    many = settings(
        max_examples=stories,
        stateful_step_count=_STEPS_OF_A_STORY,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        phases=[Phase.generate],  # shortening a story that failed may take longer than all the rounds
    )
    run_state_machine_as_test(chosen, settings=many)
