"""A short, always equal sample of the registry against its model."""

from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from chaos.registry_model import RegistryMachine
from tests.kit.databases import DatabaseSource


def test_the_registry_behaves_as_its_model(database_source: DatabaseSource) -> None:
    RegistryMachine.source = database_source
    few = settings(
        max_examples=10,
        stateful_step_count=20,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # shortening a story that failed takes minutes
    )
    run_state_machine_as_test(RegistryMachine, settings=few)
