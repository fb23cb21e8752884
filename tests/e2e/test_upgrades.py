"""A backend from a real registry, on real workers: planned, installed, outdated when its tag moves, and upgraded."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.oci.manifests import Descriptor, this_platform
from tests.kit.backend_scripts import write_serving_backend
from tests.kit.docker_registry import DockerRegistry
from tests.kit.images import a_layer

NAME = "backends/mine"


@pytest.fixture
def registry() -> Iterator[DockerRegistry]:
    with DockerRegistry() as registry:
        yield registry


@pytest.fixture
def fleet(tmp_path: Path, run_up: Any, registry: DockerRegistry) -> Iterator[Any]:
    """Two workers, and a gallery with one backend."""
    (tmp_path / "index.yaml").write_text(f"- name: mine\n  uri: oci://{registry.reference(NAME)}\n", encoding="utf-8")
    galleries = json.dumps([{"name": "g", "url": f"file://{tmp_path}/index.yaml"}])
    with run_up(tmp_path, CORRAL_BACKEND_GALLERIES=galleries) as running:
        running.until_ready()
        running.until_healthy("worker-1", "worker-2")
        yield running


def publish(registry: DockerRegistry, folder: Path, **files: bytes) -> tuple[Descriptor, Descriptor]:
    """Move the tag to a backend that works, with these files beside it; its index, and the image for this machine."""
    made = write_serving_backend(folder, f"mine-{len(files)}")
    content = {path.name: path.read_bytes() for path in made.iterdir()} | files
    ours = registry.push_image(NAME, [a_layer(content)], platform=this_platform(), tag="ours")
    return registry.push_index(NAME, [ours]), ours


def told(fleet: Any, *arguments: str) -> Any:
    outcome = fleet.corral("backends", *arguments, "--json")
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


def proofs(operation: Any) -> list[tuple[str, str]]:
    return [(one["status"], one["message"]) for one in operation["targets"]]


def test_a_moved_tag_is_found_and_after_an_upgrade_of_everything_nothing_is_left(
    fleet: Any, registry: DockerRegistry, tmp_path: Path
) -> None:
    first, ours = publish(registry, tmp_path)
    for planned in told(fleet, "plan", "install", "mine")["items"]:
        assert (planned["blocked"], planned["unknown"], planned["reached"]) == ("", "", False)
        assert planned["download_bytes"] > 0
        assert planned["digests"] == sorted([first.digest, ours.digest])
    assert proofs(told(fleet, "install", "mine")) == [("success", "digest")] * 2

    second, _ = publish(registry, tmp_path, news=b"something newer")
    (outdated,) = told(fleet, "outdated", "--refresh")["items"]
    assert (outdated["name"], outdated["needs_upgrade"]) == ("mine", True)
    assert (outdated["installed_digest"], outdated["available_digest"]) == (first.digest, second.digest)
    assert {node["node_name"]: node["freshness"] for node in outdated["nodes"]} == {
        "worker-1": "outdated",
        "worker-2": "outdated",
    }

    (upgraded,) = told(fleet, "upgrade", "--all")["items"]
    assert proofs(upgraded) == [("success", "digest")] * 2
    assert fleet.corral("backends", "outdated", "--refresh").stdout.startswith("Nothing is outdated.\n")
    assert len(list(Path(fleet.data).glob("workers/*/backends/mine/news"))) == 2
