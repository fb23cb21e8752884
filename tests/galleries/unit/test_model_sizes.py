"""How large a model probably is, by the names of its files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.galleries.model_entries import GalleryModel, ModelFile
from corral.galleries.model_sizes import EntrySize, guessed_bytes, size_of_entry


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", 4.8),
        ("mixtral-8x7b-instruct.Q5_K_M.gguf", 39.9),
        ("folder/x-0.5b-q8_0.gguf", 0.53),
        ("Llama-3.2-1B-Instruct-IQ4_XS.gguf", 0.55),
        ("SmolLM2-135M-f16.gguf", 0.27),
    ],
)
def test_names_tell_a_size(name: str, gigabytes: float) -> None:
    guess = guessed_bytes(name)
    assert guess is not None
    assert guess / 1e9 == pytest.approx(gigabytes, abs=0.02)


@pytest.mark.parametrize("name", ["a.gguf", "x-8b.gguf", "x-Q4_K_M.gguf", "x-8B-Q4_K_M.bin", "mmproj-8B-f16.gguf", ""])
def test_other_names_tell_nothing(name: str) -> None:
    assert guessed_bytes(name) is None


def entry(size: str = "", *names: str) -> GalleryModel:
    return GalleryModel(name="m-8b", size=size, files=tuple(ModelFile(filename=name, uri="u") for name in names))


def test_what_the_gallery_says_counts_first() -> None:
    assert size_of_entry(entry("2GB", "x-8B-Q4_K_M.gguf")) == EntrySize(bytes=2_000_000_000, is_guess=False)
    assert size_of_entry(entry("", "x-Q4_K_M.gguf")) == EntrySize(bytes=4_800_000_000, is_guess=True)
    assert size_of_entry(entry("much", "x.bin")) is None
    assert size_of_entry(entry()) is None


@given(st.text(max_size=200))
def test_no_name_breaks_it(name: str) -> None:
    guess = guessed_bytes(f"{name}.gguf", name)
    assert guess is None or guess >= 0
