"""Indexes of images: what comes out can be read back and leads every machine to its build."""

from pathlib import Path

import pytest

from corral.base.errors import InvalidInput
from corral.galleries.catalogue import BackendCatalogue, ResolvedBuild
from corral.galleries.gallery import GalleryEntry, GallerySource, read_gallery
from corral.galleries.index_document import read_index
from corral.imaging.description import BackendDescription
from corral.imaging.gallery_index import Listed, make_index
from corral.imaging.image_facts import DescribedImage

HERE = Path("/galleries/mine")


def an_image(name: str, place: str | Path, capability: str = "", **said: str) -> Listed:
    path = place if isinstance(place, Path) else None
    facts = DescribedImage(
        shown=str(place),
        path=path,
        is_archive=path is not None and path.suffix == ".tar",
        reference="" if path else str(place),
        description=BackendDescription(name=name, **said),  # type: ignore[arg-type]
    )
    return Listed(facts=facts, capability=capability)


def read_back(text: str) -> list[GalleryEntry]:
    gallery = read_gallery(read_index(text.encode()), GallerySource(name="mine", url="file:///x"))
    assert not gallery.skipped
    return list(gallery.entries)


def test_one_image_is_one_entry() -> None:
    [entry] = read_back(
        make_index(
            [an_image("echo", "quay.io/x/echo:1", version="1.10", description="Says: no", license="MIT")], folder=HERE
        )
    )

    assert (entry.name, entry.uri, entry.version) == ("echo", "quay.io/x/echo:1", "1.10")
    assert (entry.description, entry.license) == ("Says: no", "MIT")


def test_builds_get_names_and_a_meta_backend() -> None:
    images = [
        an_image("llama-cpp", "quay.io/x:cpu", "default"),
        an_image("llama-cpp", "quay.io/x:cuda12", "nvidia-cuda-12"),
        an_image("llama-cpp", "quay.io/x:rocm", "amd"),
        an_image("echo", "quay.io/x:echo"),
    ]

    entries = read_back(make_index(images, folder=HERE))

    assert [entry.name for entry in entries] == [
        "llama-cpp",
        "cpu-llama-cpp",
        "cuda12-llama-cpp",
        "rocm-llama-cpp",
        "echo",
    ]
    assert entries[0].is_meta
    assert entries[1].alias == "llama-cpp"
    catalogue = BackendCatalogue(
        [read_gallery(read_index(make_index(images, folder=HERE).encode()), GallerySource(name="", url=""))]
    )
    for capability, build in {"default": "cpu", "nvidia-cuda-12": "cuda12", "amd": "rocm", "intel": "cpu"}.items():
        found = catalogue.resolve("llama-cpp", capability)
        assert isinstance(found, ResolvedBuild)
        assert found.build.name == f"{build}-llama-cpp"


@pytest.mark.parametrize(
    ("place", "uri"),
    [
        (HERE / "echo", "./echo"),
        (HERE / "sub" / "echo.tar", f"ocifile://{HERE}/sub/echo.tar"),
        (Path("/galleries/echo"), "../echo"),
        ("localhost:5000/echo:1", "oci://localhost:5000/echo:1"),
        ("ghcr.io/x/echo:1", "ghcr.io/x/echo:1"),
    ],
)
def test_places_are_written_as_workers_read_them(place: str | Path, uri: str) -> None:
    [entry] = read_back(make_index([an_image("echo", place)], folder=HERE))

    assert entry.uri == uri


def test_an_image_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"quay.io/x: its annotation org.opencontainers.image.title is missing"):
        make_index([an_image("", "quay.io/x")], folder=HERE)


@pytest.mark.parametrize("capability", ["", "default"])
def test_two_builds_for_the_same_machines_are_refused(capability: str) -> None:
    images = [an_image("echo", "quay.io/x:1"), an_image("echo", "quay.io/x:2", capability)]

    with pytest.raises(
        InvalidInput, match=r"quay\.io/x:2 is another build of echo for default; write CAPABILITY=IMAGE"
    ):
        make_index(images, folder=HERE)


def test_a_place_that_workers_would_misread_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"workers would not take echo for default.*amd"):
        make_index([an_image("echo", "quay.io/x:amd64")], folder=HERE)
