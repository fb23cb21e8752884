"""Which build of a model suits which machines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.base.errors import InvalidInput
from corral.galleries.model_entries import GalleryModel
from corral.galleries.model_variants import (
    BuildFacts,
    MachineFacts,
    choose_variant,
    fit_of_build,
    parse_size,
    stated_facts,
)

GIB = 1024**3
CPU = MachineFacts(name="plain", capability="default", ram_bytes=16 * GIB)
GPU = MachineFacts(name="gpu-1", capability="nvidia-cuda-12", vram_bytes=24 * GIB, ram_bytes=64 * GIB)
SMALL_GPU = MachineFacts(name="gpu-2", capability="nvidia-cuda-12", vram_bytes=8 * GIB, ram_bytes=64 * GIB)
MAC = MachineFacts(name="mac", capability="metal", ram_bytes=32 * GIB)


def build(name: str, backend: str = "llama-cpp", size: str = "", tags: tuple[str, ...] = ()) -> GalleryModel:
    return GalleryModel(name=name, overrides={"backend": backend}, size=size, tags=tags)


Q4, Q8, F16 = build("m-q4", size="5GB"), build("m-q8", size="9GB"), build("m-f16", size="20GB")
VLLM = build("m-vllm", "vllm", "18GB")
MLX = build("m-mlx", "mlx", "6GB")
MTP = build("m-mtp", size="9GB", tags=("gguf", "MTP"))
UNKNOWN = build("m-unknown")


def entries(*builds: GalleryModel) -> dict[str, GalleryModel]:
    return {each.name.lower(): each for each in builds}


def chosen(base: GalleryModel, variants: list[GalleryModel], machines: list[MachineFacts]) -> str:
    named = GalleryModel(
        name=base.name,
        overrides=base.overrides,
        size=base.size,
        tags=base.tags,
        variants=tuple(each.name for each in variants),
    )
    return choose_variant(named, entries(named, *variants), machines).entry.name


@pytest.mark.parametrize(
    ("base", "variants", "machines", "name"),
    [
        (Q4, [Q8, F16], [CPU], "m-q8"),
        (Q4, [Q8, F16], [GPU], "m-f16"),
        (Q4, [Q8, F16], [SMALL_GPU], "m-q4"),
        (Q4, [Q8, F16], [SMALL_GPU, CPU], "m-q8"),
        (Q4, [Q8, VLLM], [GPU], "m-vllm"),
        (Q4, [Q8, VLLM], [CPU], "m-q8"),
        (Q4, [MLX], [MAC], "m-mlx"),
        (Q4, [MLX], [GPU], "m-q4"),
        (Q4, [Q8, MTP], [CPU], "m-mtp"),
        (UNKNOWN, [Q8], [CPU], "m-q8"),
        (UNKNOWN, [F16], [CPU], "m-unknown"),
        (Q8, [UNKNOWN], [CPU], "m-q8"),
        (F16, [UNKNOWN], [SMALL_GPU], "m-f16"),
        (F16, [], [SMALL_GPU], "m-f16"),
        (MLX, [], [CPU], "m-mlx"),
        (Q4, [Q8], [], "m-q4"),
    ],
)
def test_the_best_build_that_fits_is_chosen(
    base: GalleryModel, variants: list[GalleryModel], machines: list[MachineFacts], name: str
) -> None:
    assert chosen(base, variants, machines) == name


def test_every_build_has_its_reason() -> None:
    base = GalleryModel(name="m", overrides=Q4.overrides, size="5GB", variants=("m-f16", "m-mlx", "gone"))
    choice = choose_variant(base, entries(F16, MLX), [CPU])
    assert choice.entry is base
    assert choice.reason == "4.7 GiB fit into the 16.0 GiB of memory of plain with llama-cpp"
    assert [(verdict.name, verdict.is_usable, verdict.reason) for verdict in choice.verdicts] == [
        ("m", True, choice.reason),
        ("m-f16", False, "18.6 GiB do not fit into the 16.0 GiB of plain"),
        ("m-mlx", False, "mlx is for Apple, and plain is default"),
        ("gone", False, "the gallery has no such entry"),
    ]


def test_a_pin_is_taken_whatever_fits() -> None:
    base = GalleryModel(name="m", size="5GB", variants=("m-f16",))
    assert choose_variant(base, entries(F16), [SMALL_GPU], pin="M-F16").entry is F16
    with pytest.raises(InvalidInput, match=r"m has no variant 'm-f18'; did you mean m-f16\?"):
        choose_variant(base, entries(F16), [SMALL_GPU], pin="m-f18")


def test_sizes_may_come_from_those_who_asked_the_hub() -> None:
    base = GalleryModel(name="m", variants=("m-unknown",))
    sizes = {"m": 4 * GIB, "m-unknown": 7 * GIB}
    choice = choose_variant(
        base,
        entries(UNKNOWN),
        [SMALL_GPU],
        facts_of=lambda each: BuildFacts(backend="llama-cpp", size_bytes=sizes[each.name]),
    )
    assert choice.entry is UNKNOWN


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("14.5GB", 14_500_000_000),
        ("327MB", 327_000_000),
        ("1 GiB", GIB),
        ("2TB", 2 * 10**12),
        ("12 kb", 12_000),
        ("500", 500),
        ("", None),
        ("big", None),
        ("1.2.3GB", None),
        ("-1GB", None),
    ],
)
def test_sizes_are_understood_as_galleries_write_them(text: str, size: int | None) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("entry", "machines", "verdict", "fitting", "total"),
    [
        (Q8, [replace(CPU, count=30), replace(SMALL_GPU, count=4)], "fits", 30, 34),
        (F16, [replace(CPU, count=30), replace(SMALL_GPU, count=4)], "blocked", 0, 34),
        (UNKNOWN, [replace(CPU, count=30)], "unknown", 0, 30),
        (MLX, [GPU], "blocked", 0, 1),
        (Q4, [], "unknown", 0, 0),
    ],
)
def test_a_build_counts_the_machines_that_it_is_known_to_fit(
    entry: GalleryModel, machines: list[MachineFacts], verdict: str, fitting: int, total: int
) -> None:
    fit = fit_of_build(entry, stated_facts(entry), machines)
    assert (fit.verdict, fit.fitting, fit.machines) == (verdict, fitting, total)
    assert fit.reason


BUILDS = st.builds(
    build,
    st.sampled_from(["a", "b", "c", "d"]),
    st.sampled_from(["llama-cpp", "vllm", "mlx", ""]),
    st.sampled_from(["", "1GB", "7GB", "30GB"]),
    st.sampled_from([(), ("mtp",), ("dflash",)]),
)
MACHINES = st.lists(st.sampled_from([CPU, GPU, SMALL_GPU, MAC]), max_size=3)


@given(BUILDS, st.lists(BUILDS, max_size=4, unique_by=lambda each: each.name), MACHINES)
def test_a_choice_is_usable_or_the_entry_itself(
    base: GalleryModel, variants: list[GalleryModel], machines: list[MachineFacts]
) -> None:
    named = GalleryModel(
        name="base", overrides=base.overrides, size=base.size, variants=tuple(v.name for v in variants)
    )
    choice = choose_variant(named, entries(*variants), machines)
    size = stated_facts(choice.entry).size_bytes
    fits = size is None or any(size <= machine.memory for machine in machines)
    assert choice.entry is named or fits
    assert len(choice.verdicts) == 1 + len(variants)
