"""Removing models: whose weights go, and whose are in danger."""

from typing import Any

import pytest

from corral.frontend.models.decide.model import ModelSpec, read_model
from corral.frontend.models.decide.removal import NeededModel, endangered, files_of, weights_of
from corral.frontend.models.decide.stored import WeightFile


def a_model(name: str = "small", model: str = "small.gguf", *, source: str = "", **config: Any) -> ModelSpec:
    document = {"name": name, "backend": "echo", "parameters": {"model": model}, **config}
    return read_model(document, source=source or f"{name}.yaml")


def test_weights_are_what_the_model_is_loaded_from() -> None:
    assert weights_of(a_model(mmproj="eye.gguf", draft_model="fast/d.gguf")) == [
        "small.gguf",
        "eye.gguf",
        "fast/d.gguf",
    ]
    assert weights_of(a_model(model="hf://who/what")) == []
    assert weights_of(read_model({"name": "short", "alias": "small"}, source="short.yaml")) == []


@pytest.mark.parametrize(
    "other",
    [
        a_model("other", "small.gguf"),
        a_model("other", "x.gguf", mmproj="small.gguf"),
        a_model("other", "x.gguf", options=["draft:small.gguf"]),
        a_model("other", "x.gguf", lora_adapter="/somewhere/small.gguf"),
    ],
)
def test_what_another_model_speaks_of_stays(other: ModelSpec) -> None:
    spec = a_model(mmproj="eye.gguf")
    assert files_of(spec, [], [NeededModel(spec), NeededModel(other)]) == (
        ["eye.gguf"],
        ["small.gguf stays: other needs it"],
    )


def test_a_directory_that_another_model_is_loaded_from_stays() -> None:
    spec = a_model(model="family")
    assert files_of(spec, [], [NeededModel(spec)]).own == ["family"]
    others = [NeededModel(a_model(name, "family/b.gguf")) for name in ("other", "third")]
    assert files_of(spec, [], [NeededModel(spec), *others]) == ([], ["family stays: other and third need it"])


def test_what_a_model_was_pulled_with_goes_too() -> None:
    files = [WeightFile(path="small.gguf"), WeightFile(path="LICENSE")]
    assert files_of(a_model(), files, []).own == ["small.gguf", "LICENSE"]


@pytest.mark.parametrize(
    ("other", "danger"),
    [
        (a_model("other", "small.gguf"), "small.gguf, which other needs"),
        (a_model("other", "small/w.gguf"), "small/w.gguf, which other needs"),
        (a_model("other", "x.gguf", source="small.v2.yaml"), "small.v2.yaml, which other needs"),
        (a_model("other", "smaller.gguf"), ""),
        (a_model("other", "deep/small.gguf"), ""),
    ],
)
def test_names_that_would_take_others_along_are_found(other: ModelSpec, danger: str) -> None:
    assert endangered("small", [NeededModel(a_model()), NeededModel(other)]) == danger


@pytest.mark.parametrize("name", ["/small", "//small", "./small", "x/../small", "small/", "deep/one"])
def test_names_are_read_as_workers_read_them(name: str) -> None:
    others = [NeededModel(a_model("other", "small.gguf")), NeededModel(a_model("third", "deep/one.gguf"))]
    assert endangered(name, others) != ""


@pytest.mark.parametrize("name", [".corral", "/.corral", ".corral/receipts", "x/../.corral"])
def test_no_name_takes_corral_s_own_files_along(name: str) -> None:
    assert endangered(name, []) == ".corral, which Corral needs"


SPLIT = ("w/a-00001-of-00002.gguf", "w/a-00002-of-00002.gguf")


@pytest.mark.parametrize(
    ("other", "pulled"),
    [
        (a_model("copy", SPLIT[0]), ()),
        (a_model("copy", SPLIT[0]), SPLIT),
        (a_model("copy", "w"), ()),
        (a_model("copy", "x.gguf"), SPLIT),
    ],
)
def test_parts_and_directories_of_another_model_stay(other: ModelSpec, pulled: tuple[str, ...]) -> None:
    files = [WeightFile(path=path) for path in SPLIT]
    copy = NeededModel(other, [WeightFile(path=path) for path in pulled])
    assert files_of(a_model(model=SPLIT[0]), files, [copy]).own == []
    assert endangered("w", [copy]) != ""


@pytest.mark.parametrize("path", [".corral", ".corral/store", "./.corral", "other.yaml", "./other.yml"])
def test_a_model_takes_neither_configurations_nor_corral_s_own_files_along(path: str) -> None:
    files = files_of(a_model(model=path), [WeightFile(path=path)], [])
    assert (files.own, len(files.kept) > 0) == ([], True)
