"""How a worker's own command compares its backends: as frontends compare those of their nodes."""

import itertools

import pytest

from corral.frontend.backends.decide.backend import BackendEntry
from corral.frontend.backends.decide.upgrades import Offer, assess
from corral.processes.local_backends import compare_build
from corral.worker.installing.backend_metadata import Metadata, Provenance

URI = "registry.example/a:latest"
INSTALLED = [
    Metadata(name="a", version=version, digest=digest, corral=Provenance(platform_digest=platform))
    for version, digest, platform in itertools.product(("", "1", "2"), ("", "i1", "i2"), ("", "amd1", "amd2"))
]
OFFERED = [(version, digests) for version in ("", "2") for digests in ((), ("i2",), ("i2", "amd2", "arm2"))]


@pytest.mark.parametrize(("version", "digests"), OFFERED)
@pytest.mark.parametrize("here", INSTALLED)
def test_the_worker_and_its_frontend_judge_alike(here: Metadata, version: str, digests: tuple[str, ...]) -> None:
    platform = here.corral.platform_digest if here.corral is not None else ""
    entry = BackendEntry(name="a", version=here.version, digest=here.digest, platform_digest=platform)
    offer = Offer(
        backend="a",
        uri=URI,
        version=version,
        digest=next(iter(digests), ""),
        member_digests=frozenset(digests[1:]),
    )

    row = compare_build("a", here, Metadata(name="a", version=version, uri=URI), digests)

    assert row.state == assess(entry, offer)[0].value


def test_a_new_version_of_the_same_image_is_nothing_newer() -> None:
    row = compare_build("a", Metadata(version="1", digest="i2"), Metadata(version="2", uri=URI), ("i2", "amd2"))

    assert (row.state, row.installed, row.available, row.reason) == ("current", "i2", "i2", "")


def test_a_tag_that_was_moved_is_told_with_both_digests() -> None:
    row = compare_build("a", Metadata(version="2", digest="i1"), Metadata(version="2", uri=URI), ("i2", "amd2"))

    assert (row.state, row.installed, row.available) == ("outdated", "i1", "i2")
    assert row.reason == "registry.example/a:latest names another image now"


def test_the_same_version_without_a_digest_does_not_tell_whether_the_tag_was_moved() -> None:
    row = compare_build("a", Metadata(version="2"), Metadata(version="2", uri=URI), ("i2",))

    assert row.state == "unknown"
    assert row.reason.startswith("its digest was not noted at its install")
