"""Which machines builds are measured by, which entries the fleet has, and which galleries may be added."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.base.errors import Conflict, CorralError, InvalidInput
from corral.frontend.models.decide.offers import checked_addition, installed_entries, is_installed, machines_of
from corral.frontend.models.decide.stored import ModelSource, StoredModel
from corral.frontend.nodes.decide.node import Capacity
from corral.galleries.gallery import GallerySource
from corral.galleries.model_entries import GalleryModel
from corral.hubs.plans import ModelOrigin
from tests.kit.samples import a_node, after

GIB = 1024**3


def test_a_fleet_is_told_by_one_machine_of_each_kind() -> None:
    small, large = Capacity(total_ram=8 * GIB), Capacity(total_ram=64 * GIB, total_vram=24 * GIB)
    nodes = [a_node(name=f"n{number}", capacity=small) for number in range(1000)]
    nodes += [a_node(name="gpu", capacity=large), a_node(name="tight", capacity=large, admin_vram_budget="50%")]
    machines = machines_of(nodes)
    assert [(machine.name, machine.memory // GIB) for machine in machines] == [("n0", 8), ("gpu", 24), ("tight", 12)]
    assert [machine.count for machine in machines] == [1000, 1, 1]


def model(name: str, gallery: str = "") -> StoredModel:
    origin = ModelOrigin(reference="r", gallery=gallery)
    return StoredModel(
        name=name,
        number=1,
        revision="r",
        text="",
        source=ModelSource.PULL,
        origin=origin,
        changed_at=after(0),
        changed_by="me",
    )


def test_the_fleet_has_an_entry_by_name_or_by_origin() -> None:
    installed = installed_entries([model("plain"), model("mine", "g@theirs")])
    assert installed == {"plain", "mine", "g@theirs"}
    assert is_installed(GalleryModel(name="theirs", gallery="g"), installed)
    assert is_installed(GalleryModel(name="plain", gallery="h"), installed)
    assert not is_installed(GalleryModel(name="theirs", gallery="h"), installed)


def test_there_is_a_limit_of_galleries() -> None:
    others = [GallerySource(name=f"g{number}", url="https://example.org/i") for number in range(50)]
    with pytest.raises(Conflict, match="50 are the most"):
        checked_addition(GallerySource(name="one", url="https://example.org/i"), others)


@given(st.text(max_size=120), st.text(max_size=200), st.lists(st.text(max_size=60), max_size=2))
def test_nonsense_breaks_nothing(name: str, url: str, mirrors: list[str]) -> None:
    with suppress(CorralError):
        added = checked_addition(GallerySource(name=name, url=url, mirrors=tuple(mirrors)), [])
        assert added.name == added.name.strip() != ""


@pytest.mark.parametrize("url", ["https://u:secret@h/i", "https://h/i?token=secret", "oci://u:secret@h/i"])
def test_secrets_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        checked_addition(GallerySource(name="g", url=url), [])
    assert "secret" not in refused.value.message
