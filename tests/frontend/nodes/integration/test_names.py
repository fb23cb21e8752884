"""Names of backends: whatever leads to a build is one key, and what fits nowhere is not sent."""

from pathlib import Path

import pytest

from corral.frontend.backends.catalogue import GalleryCatalogue, Lookups
from corral.frontend.backends.operations import BackendOperations
from corral.frontend.backends.planning import Ask
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.operations.decide.operation import Operation, TargetStatus
from corral.frontend.operations.decide.reasons import sentence
from corral.frontend.rules.service import RuleGuard
from corral.frontend.rules.store import FleetRuleStore
from corral.galleries.build_uris import BackendRef
from corral.galleries.config import GalleriesConfig
from corral.galleries.galleries import open_galleries
from corral.galleries.gallery import GallerySource
from tests.kit.galleries import NoRegistry
from tests.kit.world import World

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""The other database is for the tests of what is stored."""

INDEX = """
- name: mock
  capabilities:
    default: cpu-mock
    nvidia-cuda-12: cuda12-mock
- name: cpu-mock
  alias: mocky
  uri: oci://r/cpu-mock:v1
- name: cuda12-mock
  alias: mocky
  uri: oci://r/cuda12-mock:v1
"""


@pytest.mark.parametrize("name", ["mock", "g@mock", "cpu-mock", "mocky", "MOCK"])
async def test_every_name_of_a_backend_leads_to_its_build(world: World, tmp_path: Path, name: str) -> None:
    await world.backends("w")
    operation = await started(world, tmp_path, name)
    assert [one.subject for one in operation.targets] == ["cpu-mock"]


async def test_what_has_no_build_for_a_node_is_blocked_there_and_not_sent(world: World, tmp_path: Path) -> None:
    node = await world.backends("w")
    operation = await started(world, tmp_path, "cuda12-mock")
    await world.control.context.operations.dispatcher.tick()
    (target,) = operation.targets
    assert target.status is TargetStatus.BLOCKED
    assert "cuda12-mock is for" in sentence(target.reason)
    assert node.requests == []


async def test_what_no_gallery_has_is_blocked_with_what_comes_near(world: World, tmp_path: Path) -> None:
    await world.backends("w")
    (target,) = (await started(world, tmp_path, "mocc")).targets
    assert target.status is TargetStatus.BLOCKED
    assert "did you mean" in sentence(target.reason)


async def started(world: World, folder: Path, name: str) -> Operation:
    index = folder / "index.yaml"
    index.write_text(INDEX, encoding="utf-8")
    config = GalleriesConfig(sources=(GallerySource(name="g", url=f"file://{index}"),), cache=folder / "cache")
    context = world.control.context
    async with open_galleries(config, registry=NoRegistry(), clock=world.clock) as galleries:
        operations = BackendOperations(
            context.operations.service,
            context.nodes.fleet,
            context.backends.inventory,
            Lookups(galleries=GalleryCatalogue(galleries)),
            world.clock,
            guard=RuleGuard(FleetRuleStore(context.database).all, GalleryCatalogue(galleries)),
        )
        return await operations.start(Ask(verb=Verb.INSTALL, ref=BackendRef(backend=name), by="me"))
