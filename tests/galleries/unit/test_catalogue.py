"""Names, aliases, metas and `gallery@name`: all lead to one build, by the rule of the node's own worker."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.base.yaml_values import YamlItem
from corral.galleries.catalogue import BackendCatalogue, Missing, ResolvedBuild, UnresolvedBuild
from corral.galleries.gallery import GalleryContent, GallerySource, read_gallery
from tests.kit.galleries import odd_metas

OFFICIAL: list[dict[str, Any]] = [
    {
        "name": "llama-cpp",
        "alias": "llama-cpp",
        "capabilities": {
            "default": "cpu-llama-cpp",
            "nvidia": "cuda12-llama-cpp",
            "nvidia-cuda-13": "cuda13-llama-cpp",
            "amd": "rocm-llama-cpp",
            "vulkan": "vulkan-llama-cpp",
        },
    },
    {"name": "llama-cpp-development", "capabilities": {"default": "cpu-llama-cpp-development"}},
    {"name": "cpu-llama-cpp", "alias": "llama-cpp", "uri": "quay.io/x:latest-cpu-llama-cpp"},
    {"name": "cpu-llama-cpp-development", "alias": "llama-cpp", "uri": "quay.io/x:master-cpu-llama-cpp"},
    {"name": "cuda12-llama-cpp", "alias": "llama-cpp", "uri": "quay.io/x:latest-gpu-nvidia-cuda-12-llama-cpp"},
    {"name": "cuda13-llama-cpp", "alias": "llama-cpp", "uri": "quay.io/x:latest-gpu-nvidia-cuda-13-llama-cpp"},
    {"name": "rocm-llama-cpp", "alias": "llama-cpp", "uri": "quay.io/x:latest-gpu-rocm-hipblas-llama-cpp"},
    {"name": "vulkan-llama-cpp", "alias": "llama-cpp", "uri": "quay.io/x:latest-gpu-vulkan-llama-cpp"},
    {"name": "vllm", "capabilities": {"nvidia": "cuda12-vllm", "amd": "rocm-vllm"}},
    {"name": "cuda12-vllm", "alias": "vllm", "uri": "quay.io/x:latest-gpu-nvidia-cuda-12-vllm"},
    {"name": "rocm-vllm", "alias": "vllm", "uri": "quay.io/x:latest-gpu-rocm-hipblas-vllm"},
    {"name": "cpu-whisper", "alias": "whisper", "uri": "quay.io/x:latest-cpu-whisper"},
    {"name": "cuda12-whisper", "alias": "whisper", "uri": "quay.io/x:latest-gpu-nvidia-cuda-12-whisper"},
    {"name": "broken", "capabilities": {"default": "nowhere"}},
    {"name": "loop", "capabilities": {"default": "pool"}},
    {"name": "pool", "capabilities": {"default": "loop"}},
    {"name": "own-tail", "capabilities": {"default": "own-tail"}},
    {"name": "mismatched", "capabilities": {"default": "cuda12-vllm"}},
]
CAPABILITIES = ["default", "nvidia", "nvidia-cuda-12", "nvidia-cuda-13", "amd", "intel", "vulkan", "metal", "disable"]


def gallery(name: str, values: Sequence[object]) -> GalleryContent:
    raw = [YamlItem(line=number, value=value) for number, value in enumerate(values, 1)]
    return read_gallery(raw, GallerySource(name=name, url=f"https://example.org/{name}"))


def catalogue(**galleries: Sequence[object]) -> BackendCatalogue:
    return BackendCatalogue(gallery(name, values) for name, values in galleries.items())


LOCALAI = catalogue(localai=OFFICIAL)


@pytest.mark.parametrize(
    ("name", "capability", "key", "is_meta"),
    [
        ("llama-cpp", "default", "cpu-llama-cpp", True),
        ("llama-cpp", "nvidia", "cuda12-llama-cpp", True),
        ("llama-cpp", "nvidia-cuda-13", "cuda13-llama-cpp", True),
        ("llama-cpp", "nvidia-cuda-12", "cpu-llama-cpp", True),  # exact: not the key `nvidia`
        ("llama-cpp", "metal", "cpu-llama-cpp", True),
        ("llama-cpp", "disable", "cpu-llama-cpp", True),
        ("LLAMA-cpp", "amd", "rocm-llama-cpp", True),
        ("localai@llama-cpp", "amd", "rocm-llama-cpp", True),
        ("LocalAI@LLaMA-cpp", "amd", "rocm-llama-cpp", True),
        ("cpu-llama-cpp", "nvidia", "cpu-llama-cpp", False),
        ("CPU-LLAMA-CPP", "nvidia", "cpu-llama-cpp", False),
        ("localai@cpu-llama-cpp", "nvidia", "cpu-llama-cpp", False),
        ("llama-cpp-development", "default", "cpu-llama-cpp-development", True),
        ("whisper", "default", "cpu-whisper", False),
        ("whisper", "nvidia-cuda-12", "cuda12-whisper", False),
        ("localai@whisper", "nvidia", "cuda12-whisper", False),
        ("cuda12-vllm", "disable", "cuda12-vllm", False),
    ],
)
def test_a_name_means_one_build(name: str, capability: str, key: str, is_meta: bool) -> None:
    found = LOCALAI.resolve(name, capability)
    assert isinstance(found, ResolvedBuild), found
    assert (found.key, found.entry.is_meta) == (key, is_meta)
    asked = name.rpartition("@")[2].lower()
    assert asked in (found.entry.name, found.entry.alias)
    assert LOCALAI.key_of(name, capability) == key


@pytest.mark.parametrize(
    ("name", "capability", "missing", "message"),
    [
        ("nope", "default", Missing.UNKNOWN, "no gallery has a backend 'nope'"),
        ("lama-cpp", "default", Missing.UNKNOWN, "no gallery has a backend 'lama-cpp'; did you mean llama-cpp"),
        ("localai@lama-cpp", "default", Missing.UNKNOWN, "did you mean localai@llama-cpp"),
        ("other@llama-cpp", "default", Missing.UNKNOWN, "no gallery has a backend 'other@llama-cpp'"),
        ("vllm", "default", Missing.NO_KEY, "vllm has builds for amd, nvidia, and this machine is default"),
        ("vllm", "nvidia-cuda-12", Missing.NO_KEY, "cuda12-vllm would fit"),
        ("broken", "default", Missing.DANGLING, "names 'nowhere' as its build for default, which no gallery has"),
        ("loop", "default", Missing.DANGLING, "which is another meta backend"),
        ("own-tail", "default", Missing.DANGLING, "which is itself"),
        ("mismatched", "default", Missing.UNSUITED, "names cuda12-vllm for default, but cuda12-vllm is for NVIDIA"),
        ("cuda12-llama-cpp", "default", Missing.UNSUITED, "'cuda' in its name or uri"),
        ("cuda12-llama-cpp", "default", Missing.UNSUITED, "llama-cpp, cpu-llama-cpp or vulkan-llama-cpp would fit"),
    ],
)
def test_why_a_name_means_nothing_here(name: str, capability: str, missing: Missing, message: str) -> None:
    found = LOCALAI.resolve(name, capability)
    assert isinstance(found, UnresolvedBuild)
    assert found.missing is missing
    assert message in found.message


def test_an_alias_without_a_build_for_the_machine_says_so() -> None:
    only_cuda = catalogue(g=[{"name": "cuda12-x", "alias": "x", "uri": "a/b:cuda"}])
    found = only_cuda.resolve("x", "default")
    assert isinstance(found, UnresolvedBuild)
    assert found.missing is Missing.UNSUITED
    assert "the alias x stands for builds such as cuda12-x" in found.message


def test_the_first_gallery_counts_unless_one_is_named() -> None:
    both = catalogue(a=[{"name": "x", "uri": "from-a"}], b=[{"name": "x", "uri": "from-b"}])
    assert [_uri(both, name) for name in ("x", "a@x", "b@x")] == ["from-a", "from-a", "from-b"]
    assert {both.key_of(name, "default") for name in ("x", "a@x", "b@x")} == {"x"}


def test_what_is_not_for_the_machine_does_not_hide_what_is() -> None:
    """LocalAI filters first and then takes the first of that name."""
    both = catalogue(
        a=[{"name": "x", "uri": "r/x:cuda"}, {"name": "m", "capabilities": {"default": "x"}}],
        b=[{"name": "x", "uri": "r/x:cpu"}],
    )
    assert (_uri(both, "x"), _uri(both, "m")) == ("r/x:cpu", "r/x:cpu")
    assert _uri(both, "x", "nvidia") == "r/x:cuda"


def test_a_meta_finds_its_build_in_any_gallery() -> None:
    both = catalogue(a=[{"name": "x", "capabilities": {"default": "cpu-x"}}], b=[{"name": "cpu-x", "uri": "u"}])
    assert both.key_of("x", "default") == "cpu-x"


@pytest.mark.parametrize(
    "second", [{"name": "X", "uri": "u"}, {"name": "x", "capabilities": {"default": "y"}}], ids=["spelling", "kind"]
)
def test_one_name_is_never_two_things(second: object) -> None:
    both = catalogue(a=[{"name": "x", "uri": "u"}], b=[second])
    assert len(both.entries) == 1
    assert "than a@x, which comes first" in both.problems[0].sentence


@pytest.mark.parametrize(
    ("name", "unread", "told"),
    [
        ("ecko", [], "no gallery has a backend 'ecko'; did you mean echo?"),
        ("whisper", [], "no gallery has a backend 'whisper'"),
        (
            "ecko",
            ["far"],
            "no gallery has a backend 'ecko'; did you mean echo? If the gallery far, which cannot be read now, has it, "
            "say far@ecko.",
        ),
        ("far@ecko", ["far"], ""),
        ("whisper", ["far"], ""),
    ],
)
def test_a_name_that_no_gallery_has_is_certain_or_a_typing_mistake_or_unknown(
    name: str, unread: list[str], told: str
) -> None:
    known = catalogue(g=[{"name": "echo", "uri": "quay.io/x:echo"}], **{one: [] for one in unread})
    missing = known.resolve(name, "default")
    assert isinstance(missing, UnresolvedBuild)
    assert known.absence(missing) == told


def test_a_slash_is_read_as_localai_does() -> None:
    assert catalogue(g=[{"name": "a__b", "uri": "u"}]).key_of("a/b", "default") == "a__b"


def test_what_no_gallery_knows_keeps_its_name() -> None:
    assert LOCALAI.key_of("my-own", "default") == "my-own"
    assert LOCALAI.key_of("far/away", "default") == "far__away"


def test_a_search_finds_what_mentions_all_words() -> None:
    found = LOCALAI.search("llama cuda12")
    assert [entry.name for entry in found] == ["cuda12-llama-cpp"]
    assert LOCALAI.search("nothing like it") == []


def test_odd_metas_are_told() -> None:
    assert {meta.name for meta, _ in odd_metas(LOCALAI.entries)} == {"broken", "loop", "pool", "own-tail"}


def _uri(shelf: BackendCatalogue, name: str, capability: str = "default") -> str:
    found = shelf.resolve(name, capability)
    assert isinstance(found, ResolvedBuild)
    return found.build.uri


NAMES = st.sampled_from(["x", "X", "cpu-x", "cuda12-x", "rocm-x", "y", "cpu-y", "x-development", "z"])
URIS = st.sampled_from(["", "r/x:cpu", "r/x:gpu-nvidia-cuda-12", "r/x:rocm", "./here"])
ENTRIES = st.fixed_dictionaries(
    {"name": NAMES, "uri": URIS},
    optional={
        "alias": NAMES,
        "capabilities": st.dictionaries(st.sampled_from([*CAPABILITIES, "cpu"]), NAMES, max_size=4),
    },
)
SHELVES = st.lists(st.lists(ENTRIES, max_size=8), min_size=1, max_size=3)


@given(SHELVES, st.sampled_from(CAPABILITIES))
def test_resolving_is_idempotent_and_all_names_of_a_build_agree(
    galleries: list[list[dict[str, Any]]], capability: str
) -> None:
    shelf = BackendCatalogue(gallery(f"g{number}", values) for number, values in enumerate(galleries))
    asked = {*(entry.name for entry in shelf.entries), *(entry.alias for entry in shelf.entries), "unknown"}
    for name in asked:
        key = shelf.key_of(name, capability)
        assert shelf.key_of(key, capability) == key
        assert shelf.key_of(name.upper(), capability).lower() == key.lower()
    for entry in shelf.entries:
        found = shelf.resolve(entry.id, capability)
        plain = shelf.resolve(entry.name, capability)
        if isinstance(found, ResolvedBuild):
            assert not found.build.is_meta
            assert found.build.uri
            assert isinstance(plain, ResolvedBuild)
            assert entry.is_meta or found.key == plain.key == entry.name


@given(SHELVES, st.text(max_size=20), st.sampled_from(CAPABILITIES))
def test_nothing_that_is_asked_is_too_odd(galleries: list[list[dict[str, Any]]], name: str, capability: str) -> None:
    shelf = BackendCatalogue(gallery(f"g{number}", values) for number, values in enumerate(galleries))
    found = shelf.resolve(name, capability)
    if isinstance(found, UnresolvedBuild):
        assert found.message
        fitting = [shelf.resolve(other, capability) for other in found.would_fit]
        assert all(isinstance(other, ResolvedBuild) for other in fitting), "what would fit does"


def test_every_name_and_capability_of_a_real_gallery_has_an_answer() -> None:
    for entry, capability in product(LOCALAI.entries, CAPABILITIES):
        found = LOCALAI.resolve(entry.name, capability)
        assert LOCALAI.resolve(entry.id, capability) == type(found)(**{**_fields(found), "asked": entry.id})


def _fields(found: ResolvedBuild | UnresolvedBuild) -> dict[str, Any]:
    return {name: getattr(found, name) for name in type(found).__struct_fields__}
