"""The rules by which LocalAI's workers choose builds, line by line."""

import pytest

from corral.galleries.catalogue import SMALL_GPU_BYTES, derived_capability, key_for, preferred_build, unsuited

EVERY_CAPABILITY = [
    "default",
    "metal",
    "darwin-x86",
    "nvidia",
    "nvidia-cuda-12",
    "nvidia-cuda-13",
    "nvidia-l4t",
    "nvidia-l4t-cuda-12",
    "nvidia-l4t-cuda-13",
    "amd",
    "intel",
    "vulkan",
    "apple",
    "cpu",
    "something else",
]
NVIDIA = {name for name in EVERY_CAPABILITY if name.startswith("nvidia")}
L4T = {name for name in NVIDIA if name.startswith("nvidia-l4t")}
APPLE = {"metal", "darwin-x86"}


@pytest.mark.parametrize(
    ("capability", "keys", "found"),
    [
        ("nvidia-cuda-12", {"nvidia-cuda-12", "nvidia", "default"}, "nvidia-cuda-12"),
        ("nvidia-cuda-12", {"nvidia", "default", "cpu"}, "default"),
        ("nvidia-cuda-12", {"nvidia", "cpu"}, "cpu"),
        ("nvidia-cuda-12", {"nvidia"}, None),
        ("nvidia", {"nvidia-cuda-12"}, None),
        ("default", {"default"}, "default"),
        ("default", {"cpu", "nvidia"}, "cpu"),
        ("metal", {"metal-darwin-arm64", "default"}, "default"),
        ("amd", {"AMD"}, None),
        ("disable", {"nvidia", "default"}, "default"),
        ("disable", {"nvidia"}, None),
        ("", {"nvidia"}, None),
    ],
)
def test_a_key_is_found_exactly_or_falls_to_default_then_cpu(
    capability: str, keys: set[str], found: str | None
) -> None:
    assert key_for(capability, keys) == found


@pytest.mark.parametrize(
    ("vendor", "vram", "capability"),
    [
        ("", None, "default"),
        ("", 80 * 1024**3, "default"),
        ("nvidia", None, "default"),
        ("nvidia", SMALL_GPU_BYTES, "default"),
        ("nvidia", SMALL_GPU_BYTES + 1, "nvidia"),
        ("amd", 24 * 1024**3, "amd"),
        ("vulkan", 8 * 1024**3, "vulkan"),
    ],
)
def test_a_node_that_says_nothing_is_judged_by_its_gpu(vendor: str, vram: int | None, capability: str) -> None:
    assert derived_capability(vendor, vram) == capability


@pytest.mark.parametrize(
    ("name", "uri", "allowed"),
    [
        ("cpu-llama-cpp", "quay.io/x/backends:latest-cpu-llama-cpp", set(EVERY_CAPABILITY)),
        ("vulkan-llama-cpp", "quay.io/x/backends:latest-gpu-vulkan-llama-cpp", set(EVERY_CAPABILITY)),
        ("cuda12-vllm", "quay.io/x/backends:latest-gpu-nvidia-cuda-12-vllm", NVIDIA),
        ("plain", "quay.io/x/backends:latest-gpu-nvidia-cuda-12-vllm", NVIDIA),
        ("nvidia-l4t-arm64-vllm", "quay.io/x/backends:latest-nvidia-l4t-arm64-vllm", L4T),
        ("cuda13-nvidia-l4t-arm64-vllm", "quay.io/x/y:z", L4T),
        ("rocm-vllm", "quay.io/x/backends:latest-gpu-rocm-hipblas-vllm", {"amd"}),
        ("chip-counter", "example.org/x", {"amd"}),
        ("plain", "example.org/x:linux-amd64", {"amd"}),
        ("intel-sycl-f16-vllm", "quay.io/x/backends:latest-gpu-intel-sycl-f16-vllm", {"intel"}),
        ("METAL-llama-cpp", "quay.io/x/y:z", APPLE),
        ("mlx", "quay.io/x/y:z", APPLE),
        ("metal-x", "quay.io/x:gpu-nvidia-cuda-12", APPLE),
    ],
)
def test_a_build_is_offered_by_the_words_in_its_name_and_uri(name: str, uri: str, allowed: set[str]) -> None:
    assert {one for one in EVERY_CAPABILITY if unsuited(one, name=name, uri=uri) is None} == allowed


def test_disabling_the_filter_offers_everything() -> None:
    for name in ("cuda12-x", "rocm-x", "mlx-x", "intel-x", "nvidia-l4t-x"):
        assert unsuited("disable", name=name, uri="") is None


def test_what_gave_a_build_away_is_told() -> None:
    found = unsuited("default", name="cuda12-vllm", uri="")
    assert found is not None
    assert (found.maker, found.word) == ("NVIDIA", "cuda")


@pytest.mark.parametrize(
    ("capability", "chosen"),
    [
        ("nvidia-cuda-12", "cuda12-x"),
        ("nvidia", "cuda12-x"),
        ("amd", "rocm-x"),
        ("intel", "intel-sycl-f16-x"),
        ("vulkan", "vulkan-x"),
        ("metal", "metal-x"),
        ("default", "cpu-x"),
        ("darwin-x86", "cpu-x"),
    ],
)
def test_an_alias_prefers_the_best_kind_of_build(capability: str, chosen: str) -> None:
    names = ["vulkan-x", "rocm-x", "metal-x", "cpu-x-development", "cpu-x", "intel-sycl-f16-x", "cuda12-x"]
    assert preferred_build(names, capability) == chosen


def test_without_a_preferred_word_the_first_in_the_alphabet_is_taken() -> None:
    assert preferred_build(["zebra", "ant"], "default") == "ant"
    assert preferred_build([], "default") is None
