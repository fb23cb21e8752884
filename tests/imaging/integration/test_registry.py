"""From a directory into a real registry and back, with Debian's docker-registry."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.base.clock import SystemClock
from corral.imaging.image_facts import image_facts
from corral.imaging.layouts import write_archive
from corral.imaging.push import PushResult, push_layout
from corral.oci.auth import Credential
from corral.oci.config import ImagesConfig
from corral.oci.errors import ImageNotFound, RegistryRefused
from corral.oci.manifests import ImagePlatform, this_platform
from corral.oci.orders import PullOrder, PullResult, Scale
from corral.oci.pull import Pull
from corral.oci.references import parse_reference
from tests.kit.docker_registry import PASSWORD, USERNAME, DockerRegistry

from .conftest import Workbench

OTHER = ImagePlatform(os="darwin", architecture="arm64")


@pytest.fixture
def guarded() -> Iterator[DockerRegistry]:
    with DockerRegistry(needs_login=True) as registry:
        yield registry


async def push(path: Path, reference: str, *, mount_from: str = "", login: Credential | None = None) -> PushResult:
    config = ImagesConfig(credentials=() if login is None else (login,))
    return await push_layout(
        path, parse_reference(reference), config=config, clock=SystemClock(), mount_from=mount_from
    )


async def pull(reference: str, folder: Path) -> PullResult:
    order = PullOrder(
        sources=(reference,), target=str(folder / "target"), cache=str(folder / "cache"), platform=this_platform()
    )
    return await Pull(order, scale=Scale(), clock=SystemClock()).run()


async def test_what_was_built_comes_back_from_the_registry(
    workbench: Workbench, registry: DockerRegistry, tmp_path: Path
) -> None:
    built = await workbench.build(tmp_path / "image", platforms=(this_platform(), OTHER))
    reference = registry.reference("team/tiny", "1.0")

    pushed = await push(tmp_path / "image", reference)
    pulled = await pull(reference, tmp_path)
    again = await push(tmp_path / "image", reference)
    facts = await image_facts(reference, config=ImagesConfig(), clock=SystemClock())

    assert pushed.digest == pulled.digest == built.digest
    assert pulled.platform_digest == built.images[0].digest
    assert (tmp_path / "target" / "run.sh").read_bytes() == (workbench.directory / "run.sh").read_bytes()
    assert (again.sent_bytes, again.spared_bytes) == (0, pushed.sent_bytes)
    assert (facts.description, facts.digest) == (built.description, built.digest)


async def test_another_repository_takes_layers_from_the_first(
    workbench: Workbench, registry: DockerRegistry, tmp_path: Path
) -> None:
    await workbench.build(tmp_path / "image")
    write_archive(tmp_path / "image", tmp_path / "image.tar")
    first = await push(tmp_path / "image.tar", registry.reference("team/tiny"))

    second = await push(tmp_path / "image.tar", registry.reference("team/other"), mount_from="team/tiny")

    assert (second.sent_bytes, second.spared_bytes) == (0, first.sent_bytes)
    assert (await pull(registry.reference("team/other"), tmp_path)).digest == first.digest


async def test_a_registry_that_wants_a_login(workbench: Workbench, guarded: DockerRegistry, tmp_path: Path) -> None:
    await workbench.build(tmp_path / "image")
    reference = guarded.reference("team/tiny")
    good = Credential(place=guarded.address, username=USERNAME, password=PASSWORD)
    wrong = Credential(place=guarded.address, username=USERNAME, password="another")

    with pytest.raises(RegistryRefused, match="wants a login"):
        await push(tmp_path / "image", reference)
    with pytest.raises(RegistryRefused, match=r"401|not accept"):
        await push(tmp_path / "image", reference, login=wrong)

    assert (await push(tmp_path / "image", reference, login=good)).sent_bytes


async def test_an_image_that_is_not_there_cannot_be_listed(registry: DockerRegistry) -> None:
    with pytest.raises(ImageNotFound, match="answered 404"):
        await image_facts(registry.reference("team/none"), config=ImagesConfig(), clock=SystemClock())
