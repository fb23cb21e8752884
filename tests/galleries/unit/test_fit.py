"""Whether a backend fits a node: before a byte is fetched, with the reason and with what would fit."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.base.ids import NodeId
from corral.base.yaml_values import YamlItem
from corral.frontend.backends.decide.backend import traits_of
from corral.frontend.nodes.decide.node import Capacity, Gpu, Node, NodeFacts, Peer
from corral.galleries.catalogue import BackendCatalogue, UnresolvedBuild
from corral.galleries.fit import (
    Blocked,
    Fits,
    Hindrance,
    NodeTraits,
    Unknown,
    Verdict,
    blocked_by,
    judge_build,
    read_platform,
    wanted_digests,
)
from corral.galleries.gallery import GalleryEntry, GallerySource, read_gallery
from corral.oci.manifests import ImageFacts, ImagePlatform, PlatformImage, best_platform, platform_of

GIB = 1024**3
NOW = datetime(2030, 1, 1, tzinfo=UTC)
AMD64 = ImagePlatform(os="linux", architecture="amd64")
ARM64 = ImagePlatform(os="linux", architecture="arm64")
ARM64_V8 = ImagePlatform(os="linux", architecture="arm64", variant="v8")
ARMV7 = ImagePlatform(os="linux", architecture="arm", variant="v7")
ARMV6 = ImagePlatform(os="linux", architecture="arm", variant="v6")
ONE_DISK = Peer(version="1", platform="linux/arm64", has_one_disk=True)

ENTRIES: list[object] = [
    {"name": "llama", "capabilities": {"default": "cpu-llama", "nvidia-cuda-12": "cuda12-llama"}},
    {"name": "cpu-llama", "alias": "llama", "uri": "quay.io/x:cpu-llama"},
    {"name": "cuda12-llama", "alias": "llama", "uri": "quay.io/x:cuda-12-llama"},
    {"name": "local", "uri": "/srv/backends/local"},
    {"name": "vllm", "capabilities": {"nvidia-cuda-12": "cuda12-vllm"}},
    {"name": "cuda12-vllm", "alias": "vllm", "uri": "quay.io/x:cuda-12-vllm"},
    {"name": "broken", "capabilities": {"default": "gone"}},
]
CATALOGUE = BackendCatalogue(
    [read_gallery([YamlItem(line=1, value=entry) for entry in ENTRIES], GallerySource(name="g", url="u"))]
)
NODE = NodeTraits(capability="default", platform=AMD64, disk_free=10 * GIB)
SMALL = PlatformImage(platform=AMD64, download_bytes=2 * GIB)
IMAGE = ImageFacts(is_index=True, members=(replace(SMALL, platform=ARM64), SMALL))


def judge(name: str, catalogue: BackendCatalogue, node: NodeTraits, image: ImageFacts | None) -> Verdict:
    """The verdict on a name: on its build, if there is one."""
    resolved = catalogue.resolve(name, node.effective_capability)
    return blocked_by(resolved) if isinstance(resolved, UnresolvedBuild) else judge_build(resolved.build, node, image)


@pytest.mark.parametrize(
    ("name", "node", "build"),
    [
        ("llama", NODE, "cpu-llama"),
        ("g@llama", NODE, "cpu-llama"),
        ("cpu-llama", NODE, "cpu-llama"),
        ("llama", replace(NODE, capability="nvidia-cuda-12"), "cuda12-llama"),
        ("llama", replace(NODE, capability="nvidia"), "cpu-llama"),
        ("cuda12-llama", replace(NODE, capability="", gpu_vendor="nvidia", total_vram=8 * GIB), "cuda12-llama"),
        ("llama", replace(NODE, disk_free=4 * GIB), "cpu-llama"),
    ],
)
def test_what_fits(name: str, node: NodeTraits, build: str) -> None:
    verdict = judge(name, CATALOGUE, node, IMAGE)
    assert isinstance(verdict, Fits), verdict
    assert verdict.build.name == build
    assert verdict.manifest == SMALL


@pytest.mark.parametrize(
    ("name", "node", "image", "hindrance", "reason", "would_fit"),
    [
        ("nope", NODE, IMAGE, Hindrance.NO_SUCH_BACKEND, "no gallery has a backend 'nope'", ()),
        ("lama", NODE, IMAGE, Hindrance.NO_SUCH_BACKEND, "did you mean llama", ()),
        ("vllm", NODE, IMAGE, Hindrance.NO_BUILD, "has builds for nvidia-cuda-12, and this machine is default", ()),
        ("broken", NODE, IMAGE, Hindrance.BROKEN_META, "names 'gone' as its build", ()),
        (
            "cuda12-llama",
            NODE,
            IMAGE,
            Hindrance.OTHER_HARDWARE,
            "is for NVIDIA ('cuda' in its name or uri), and this machine is default",
            ("llama", "cpu-llama"),
        ),
        (
            "cuda12-llama",
            replace(NODE, capability="", gpu_vendor="nvidia", total_vram=4 * GIB),
            IMAGE,
            Hindrance.OTHER_HARDWARE,
            "this machine is default",
            ("llama", "cpu-llama"),
        ),
        (
            "llama",
            replace(NODE, platform=ARMV7),
            IMAGE,
            Hindrance.OTHER_PLATFORM,
            "is for linux/arm64, linux/amd64, and this machine is linux/arm/v7",
            (),
        ),
        (
            "llama",
            replace(NODE, disk_free=4 * GIB - 1),
            IMAGE,
            Hindrance.DISK_FULL,
            "cpu-llama needs 4.0 GiB of disk, and 4.0 GiB are free",
            (),
        ),
        ("llama", replace(NODE, disk_free=0), IMAGE, Hindrance.DISK_FULL, "and 0 B are free", ()),
    ],
)
def test_what_is_blocked_says_why_and_what_would_fit(
    name: str, node: NodeTraits, image: ImageFacts, hindrance: Hindrance, reason: str, would_fit: tuple[str, ...]
) -> None:
    verdict = judge(name, CATALOGUE, node, image)
    assert isinstance(verdict, Blocked), verdict
    assert verdict.hindrance is hindrance
    assert reason in verdict.reason
    assert verdict.would_fit == would_fit


@pytest.mark.parametrize(
    ("node", "image", "reason"),
    [
        (NODE, None, "its image could not be looked at"),
        (replace(NODE, platform=None), IMAGE, "did not say which platform"),
        (NODE, ImageFacts(is_index=False), "does not say how large it is"),
        (NODE, ImageFacts(is_index=True, members=(PlatformImage(platform=AMD64),)), "does not say how large it is"),
        (replace(NODE, disk_free=None), IMAGE, "how much room"),
        (
            replace(NODE, disk_free=GIB, is_disk_certain=False),
            IMAGE,
            "cpu-llama needs 4.0 GiB of disk, and 1.0 GiB are free on the disk of its models; whether backends are on "
            "another one it does not say",
        ),
    ],
)
def test_what_is_not_known_blocks_nothing(node: NodeTraits, image: ImageFacts | None, reason: str) -> None:
    verdict = judge("llama", CATALOGUE, node, image)
    assert isinstance(verdict, Unknown), verdict
    assert reason in verdict.reason


def test_the_disk_that_a_localai_worker_reports_is_enough_when_it_has_room() -> None:
    localai = replace(NODE, is_disk_certain=False, needs_scheme=True)
    assert isinstance(judge("llama", CATALOGUE, localai, IMAGE), Fits)


@pytest.mark.parametrize(
    ("uri", "mirrors", "is_taken"),
    [
        ("registry.lan:5000/x:v1", (), False),
        ("a/b:v1", ("c/d:v1",), False),
        ("oci://registry.lan:5000/x:v1", (), True),
        ("quay.io/x:v1", (), True),
        ("registry.lan:5000/x:v1", ("oci://registry.lan:5000/x:v1",), True),
    ],
)
def test_an_image_that_localai_does_not_take_for_one_is_blocked_there(
    uri: str, mirrors: tuple[str, ...], is_taken: bool
) -> None:
    entry = GalleryEntry(name="x", uri=uri, mirrors=mirrors)
    assert isinstance(judge_build(entry, NODE, IMAGE), Fits)

    verdict = judge_build(entry, replace(NODE, needs_scheme=True), IMAGE)

    assert isinstance(verdict, Fits if is_taken else Blocked)
    if isinstance(verdict, Blocked):
        assert verdict.hindrance is Hindrance.REFUSED_URI
        assert f"the gallery has to say oci://{uri}" in verdict.reason


def test_a_directory_is_not_pulled() -> None:
    assert isinstance(judge("local", CATALOGUE, NODE, None), Fits)


def test_a_single_image_is_taken_as_it_is() -> None:
    """LocalAI does not look at its platform, and images exist that name a wrong one."""
    single = ImageFacts(is_index=False, members=(replace(SMALL, platform=ARM64),))
    assert isinstance(judge("llama", CATALOGUE, NODE, single), Fits)


@pytest.mark.parametrize(
    ("offered", "wanted", "chosen"),
    [
        ([AMD64, ARM64], ARM64, ARM64),
        ([ARM64_V8], ARM64, ARM64_V8),
        ([None], AMD64, None),
        ([ARM64], AMD64, "none"),
        ([], AMD64, "none"),
        ([ARMV6, ARMV7], ARMV7, ARMV7),
        ([ARMV6], ARMV7, ARMV6),
        ([ARMV7], ARMV6, "none"),
        ([None], ARM64, None),
        ([None, ARM64], AMD64, None),
        ([ImagePlatform(os="windows", architecture="amd64")], AMD64, "none"),
        ([ImagePlatform(os="unknown", architecture="unknown"), AMD64], AMD64, AMD64),
    ],
)
def test_the_member_of_an_index_for_a_platform(
    offered: list[ImagePlatform | None], wanted: ImagePlatform, chosen: ImagePlatform | str | None
) -> None:
    number = best_platform(offered, wanted)
    assert ("none" if number is None else offered[number]) == chosen


@pytest.mark.parametrize(
    ("system", "machine", "platform"),
    [
        ("Linux", "x86_64", AMD64),
        ("linux", "aarch64", ARM64),
        ("darwin", "arm64", ImagePlatform(os="darwin", architecture="arm64")),
        ("linux", "armv7l", ARMV7),
        ("linux", "riscv64", ImagePlatform(os="linux", architecture="riscv64")),
        ("", "x86_64", None),
        ("linux", "", None),
    ],
)
def test_platforms_are_called_as_images_call_them(system: str, machine: str, platform: ImagePlatform | None) -> None:
    assert platform_of(system, machine) == platform


@pytest.mark.parametrize(
    ("capacity", "gpu", "capability", "peer", "effective", "disk_free"),
    [
        (Capacity(), Gpu(), "", ONE_DISK, "default", None),
        (Capacity(total_disk=9, available_disk=0), Gpu(), "nvidia-cuda-12", ONE_DISK, "nvidia-cuda-12", 0),
        (Capacity(total_vram=8 * GIB, total_disk=9, available_disk=5), Gpu(vendor="amd"), "", ONE_DISK, "amd", 5),
        (Capacity(total_vram=2 * GIB), Gpu(vendor="amd"), "", ONE_DISK, "default", None),
        (Capacity(total_disk=9, available_disk=5), Gpu(), "", Peer(version="1"), "default", None),
        (Capacity(total_disk=9, available_disk=5), Gpu(), "", None, "default", 5),
        (Capacity(), Gpu(), "", None, "default", None),
    ],
)
def test_what_a_frontend_knows_of_a_node(
    capacity: Capacity, gpu: Gpu, capability: str, peer: Peer | None, effective: str, disk_free: int | None
) -> None:
    node = Node(
        id=NodeId("n"),
        name="n",
        facts=NodeFacts(last_heartbeat=NOW),
        capacity=capacity,
        gpu=gpu,
        capability=capability,
        peer=peer,
        created_at=NOW,
        registered_at=NOW,
        updated_at=NOW,
    )
    traits = traits_of(node)
    assert (traits.effective_capability, traits.disk_free) == (effective, disk_free)
    assert traits.platform == (ARM64 if peer is ONE_DISK else None)
    assert (traits.is_disk_certain, traits.needs_scheme) == (peer is not None, peer is None)


@pytest.mark.parametrize(
    ("text", "platform"),
    [
        ("linux/amd64", AMD64),
        ("linux/arm/v7", ARMV7),
        ("", None),
        ("linux", None),
        ("/amd64", None),
        ("linux/", None),
        ("linux/arm/v7/x", None),
    ],
)
def test_platforms_as_workers_write_them(text: str, platform: ImagePlatform | None) -> None:
    assert read_platform(text) == platform


@pytest.mark.parametrize(
    ("platform", "digests"),
    [(AMD64, {"index", "amd"}), (ARM64, {"index", "arm"}), (ARMV7, {"index"}), (None, {"index"})],
)
def test_a_node_shows_what_it_has_by_the_index_or_by_its_own_member(
    platform: ImagePlatform | None, digests: set[str]
) -> None:
    members = (PlatformImage(platform=AMD64, digest="amd"), PlatformImage(platform=ARM64, digest="arm"))
    assert wanted_digests(ImageFacts(is_index=True, digest="index", members=members), platform) == digests


def test_a_single_image_has_one_digest() -> None:
    single = ImageFacts(is_index=False, digest="d", members=(PlatformImage(digest="d"),))
    assert wanted_digests(single, AMD64) == wanted_digests(single, None) == {"d"}


PLATFORMS = st.sampled_from([None, AMD64, ARM64, ARMV7])
AMOUNTS = st.none() | st.integers(0, 20 * GIB)
NODES = st.builds(
    NodeTraits,
    capability=st.sampled_from(["", "default", "nvidia-cuda-12", "nvidia", "amd", "disable"]),
    platform=PLATFORMS,
    gpu_vendor=st.sampled_from(["", "nvidia", "amd"]),
    total_vram=AMOUNTS,
    disk_free=AMOUNTS,
)
IMAGES = st.none() | st.builds(
    ImageFacts,
    is_index=st.booleans(),
    members=st.lists(st.builds(PlatformImage, platform=PLATFORMS, download_bytes=AMOUNTS), max_size=3).map(tuple),
)


@given(st.sampled_from(["llama", "g@llama", "cpu-llama", "cuda12-llama", "local", "vllm", "nope"]), NODES, IMAGES)
def test_a_verdict_holds_what_it_says(name: str, node: NodeTraits, image: ImageFacts | None) -> None:
    verdict = judge(name, CATALOGUE, node, image)
    match verdict:
        case Blocked():
            assert verdict.reason
            for other in verdict.would_fit:
                assert not isinstance(judge(other, CATALOGUE, node, None), Blocked)
        case Unknown():
            assert verdict.reason
        case Fits(manifest=PlatformImage(disk_bytes=int(needed))):
            assert node.disk_free is not None
            assert needed <= node.disk_free


@given(NODES, IMAGES, st.integers(0, 20 * GIB))
def test_more_disk_never_blocks(node: NodeTraits, image: ImageFacts | None, more: int) -> None:
    roomier = replace(node, disk_free=(node.disk_free or 0) + more)
    before = judge("llama", CATALOGUE, replace(node, disk_free=node.disk_free or 0), image)
    if not isinstance(before, Blocked):
        assert not isinstance(judge("llama", CATALOGUE, roomier, image), Blocked)
