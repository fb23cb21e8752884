"""Models of Ollama's registry, and of registries of images in all usual forms, become plans."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import yaml

from corral.base.clock import SystemClock
from corral.base.errors import InvalidInput
from corral.hubs.access import HubAccess
from corral.hubs.choose import PullWish
from corral.hubs.config import HubsConfig
from corral.hubs.downloads.download import Download
from corral.hubs.downloads.orders import DownloadDamaged, DownloadLimits, DownloadOrder, FetchedFile, FileOrder
from corral.hubs.downloads.transfers import RangeTransfers
from corral.hubs.listings import HubModelMissing, HubRefused
from corral.hubs.plans import PullPlan
from corral.hubs.references import parse_reference
from corral.hubs.resolve import plan_file, plan_reference
from corral.oci.config import ImagesConfig
from corral.oci.manifests import OCI_MANIFEST
from corral.oci.references import digest_of
from tests.kit.gguf import LLAMA, gguf
from tests.kit.hub_server import OllamaServer
from tests.kit.images import a_file, gzipped, tar_of, zstandardised
from tests.kit.registry import FakeRegistry

CHAT = gguf(**LLAMA, tokenizer__chat_template="{{ messages }}")
PLAIN = gguf(**LLAMA)
PROJECTOR = gguf(general__architecture="clip", clip__has_vision_encoder=True)
TEMPLATE = b"{{ if .System }}S:{{ .System }}\n{{ end }}U:{{ .Prompt }}\nA:{{ .Response }}"


@pytest.fixture
def ollama() -> Iterator[OllamaServer]:
    with OllamaServer() as server:
        yield server


@pytest.fixture
async def registry() -> AsyncIterator[FakeRegistry]:
    async with FakeRegistry() as registry:
        yield registry


@pytest.fixture
async def hub(ollama: OllamaServer) -> AsyncIterator[HubAccess]:
    async with HubAccess.open(HubsConfig(ollama_url=ollama.base)) as hub:
        yield hub


async def plan(hub: HubAccess, text: str, *, name: str = "", context: int = 0) -> PullPlan:
    return await plan_reference(parse_reference(text), PullWish(text=text, name=name, context=context), hub)


async def test_all_layers_of_ollama_are_taken_over_or_named(ollama: OllamaServer, hub: HubAccess) -> None:
    params = b'{"stop": ["<end>"], "temperature": 0.5, "num_ctx": 2048, "num_predict": 99, "penalize_newline": true}'
    layers = {
        "model": PLAIN,
        "template": TEMPLATE,
        "params": params,
        "system": "Sei höflich.".encode(),
        "projector": PROJECTOR,
        "license": b"\nMIT License\nmore",
        "adapter": b"lora",
        "messages": b"[]",
    }
    digest = ollama.add_model("library/tiny", layers, tag="1b")
    made = await plan(hub, "ollama://tiny:1b")
    assert (made.name, made.origin.resolved) == ("tiny-1b", f"ollama://tiny@{digest}")
    assert made.origin.licence == "MIT License"
    assert [(file.path, file.hub, file.size, file.digest) for file in made.files] == [
        ("tiny-1b/tiny-1b.gguf", "ollama", len(PLAIN), digest_of(PLAIN)),
        ("tiny-1b/mmproj-tiny-1b.gguf", "ollama", len(PROJECTOR), digest_of(PROJECTOR)),
        ("tiny-1b/adapter-tiny-1b.gguf", "ollama", 4, digest_of(b"lora")),
    ]
    config = yaml.safe_load(made.config)
    assert config["parameters"] == {"model": "tiny-1b/tiny-1b.gguf", "temperature": 0.5, "max_tokens": 99}
    assert (config["stopwords"], config["context_size"]) == (["<end>"], 2048)
    assert (config["system_prompt"], config["lora_adapter"]) == ("Sei höflich.", "adapter-tiny-1b.gguf")
    assert (config["mmproj"], config["known_usecases"]) == (
        "tiny-1b/mmproj-tiny-1b.gguf",
        ["chat", "completion", "vision"],
    )
    assert "{{ .Input }}" in config["template"]["chat"]
    assert made.notes == (
        "parameters of Ollama's model that are not taken over: penalize_newline",
        "the layer 'messages' of Ollama's model is not taken over",
    )
    assert yaml.safe_load((await plan(hub, "ollama://tiny:1b", context=512)).config)["context_size"] == 512


async def test_the_files_own_template_has_precedence(ollama: OllamaServer, hub: HubAccess) -> None:
    ollama.add_model("library/tiny", {"model": CHAT, "template": TEMPLATE})
    made = await plan(hub, "ollama://tiny")
    assert yaml.safe_load(made.config)["template"] == {"use_tokenizer_template": True}
    assert made.notes == ("Ollama's template is not taken over: the file has its own, which is used",)


async def test_a_template_without_counterpart_is_named(ollama: OllamaServer, hub: HubAccess) -> None:
    ollama.add_model("me/tiny", {"model": PLAIN, "template": b"{{ range .Messages }}{{ .Content }}{{ end }}"})
    made = await plan(hub, "ollama://me/tiny")
    assert "it uses {{ range .Messages }}" in made.notes[0]
    assert yaml.safe_load(made.config)["known_usecases"] == ["completion"]


async def test_a_missing_model_of_ollama_is_named(hub: HubAccess) -> None:
    with pytest.raises(HubModelMissing, match=r"answered 404 for .*library/none:latest"):
        await plan(hub, "ollama://none")


async def test_a_missing_tag_is_told_with_those_that_are_there(ollama: OllamaServer, hub: HubAccess) -> None:
    for tag in ("1b", "3b"):
        ollama.add_model("library/tiny", {"model": CHAT}, tag=tag)
    with pytest.raises(HubModelMissing, match=r"library/tiny:7b; there is 3b, 1b|there is 1b, 3b"):
        await plan(hub, "ollama://tiny:7b")


async def test_ollamas_token_goes_to_its_registry_only(ollama: OllamaServer, registry: FakeRegistry) -> None:
    ollama.add_model("library/tiny", {"model": CHAT}, authorization="Bearer secret")
    registry.add_manifest("library/tiny", {"layers": []}, OCI_MANIFEST, tag="latest")
    async with HubAccess.open(HubsConfig(ollama_url=ollama.base, ollama_token="secret")) as hub:
        made = await plan(hub, "ollama://tiny")
        assert await hub.authorization(made.files[0]) == "Bearer secret"
        with pytest.raises(InvalidInput, match="has no weights"):
            await plan(hub, f"ollama://{registry.address}/library/tiny")
    assert not any("Authorization" in request.headers for request in registry.heard)


async def test_docker_models_and_files_with_names_are_taken(registry: FakeRegistry, hub: HubAccess) -> None:
    docker = [
        registry.add_blob(CHAT, "application/vnd.docker.ai.gguf.v3"),
        registry.add_blob(b"MIT", "application/vnd.docker.ai.license"),
    ]
    registry.add_manifest("ai/tiny", {"layers": docker}, OCI_MANIFEST, tag="1")
    made = await plan(hub, f"oci://{registry.address}/ai/tiny:1")
    assert [(file.path, file.digest) for file in made.files] == [("tiny/tiny.gguf", digest_of(CHAT))]

    titled = {"org.opencontainers.image.title": "some-Q4_K_M.gguf"}
    other = {"org.cncf.model.filepath": "mmproj-F16.gguf"}
    layers = [
        {**_described(registry, CHAT, "application/x"), "annotations": titled},
        {**_described(registry, PROJECTOR, "application/vnd.cncf.model.weight.v1.raw"), "annotations": other},
    ]
    registry.add_manifest("team/files", {"layers": layers}, OCI_MANIFEST, tag="latest")
    made = await plan(hub, f"oci://{registry.address}/team/files", name="mine")
    assert [file.path for file in made.files] == ["mine/some-Q4_K_M.gguf", "mine/mmproj-F16.gguf"]
    planned = await plan_file(f"oci://{registry.address}/team/files", "x/some-Q4_K_M.gguf", "", hub)
    assert (planned.size, planned.digest) == (len(CHAT), digest_of(CHAT))


async def test_ollamas_layers_in_another_registry_are_read_too(registry: FakeRegistry, hub: HubAccess) -> None:
    layers = [
        registry.add_blob(CHAT, "application/vnd.ollama.image.model"),
        registry.add_blob(b'{"top_k": 3}', "application/vnd.ollama.image.params"),
    ]
    registry.add_manifest("team/tiny", {"layers": layers}, OCI_MANIFEST, tag="latest")
    made = await plan(hub, f"oci://{registry.address}/team/tiny")
    assert yaml.safe_load(made.config)["parameters"] == {"model": "tiny/tiny.gguf", "top_k": 3}
    assert made.files[0].hub == "oci"


async def download(folder: Path, file: FileOrder) -> FetchedFile:
    order = DownloadOrder(files=(file,), directory=str(folder), limits=DownloadLimits(free_bytes=0))
    with RangeTransfers(order.network, order.limits) as transfers:
        (fetched,) = (await Download(order, clock=SystemClock()).run(transfers)).files
    return fetched


@pytest.mark.parametrize("pack", [bytes, gzipped, zstandardised])
async def test_an_image_of_one_file_is_a_model(
    registry: FakeRegistry, hub: HubAccess, tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    layer = pack(tar_of(a_file("./README", b"x"), a_file("./tiny-Q4_0.gguf", CHAT)))
    registry.add_image("team/tiny", [layer])
    made = await plan(hub, f"oci://{registry.address}/team/tiny")
    (file,) = made.files
    assert (file.path, file.size, file.digest) == ("tiny/tiny-Q4_0.gguf", len(CHAT), digest_of(layer))
    order = FileOrder(url=file.url, destination=file.path, size=file.size, digest=file.digest)
    for fetched in (len(layer), 0):
        got = await download(tmp_path, order)
        assert (got.sha256, got.size, got.fetched_bytes) == (digest_of(CHAT)[7:], len(CHAT), fetched)
    assert (tmp_path / file.path).read_bytes() == CHAT
    assert list(tmp_path.joinpath(".corral", "partial").iterdir()) == []
    planned = await plan_file(f"oci://{registry.address}/team/tiny", "x.gguf", "AB" * 32, hub)
    assert (planned.url, planned.size) == (f"{file.url}&sha256={'ab' * 32}", len(CHAT))
    order = FileOrder(url=planned.url, destination=planned.path, size=planned.size, digest=planned.digest)
    with pytest.raises(DownloadDamaged, match="is not the file with the hash abab"):
        await download(tmp_path, order)


@pytest.mark.parametrize(
    ("layer", "problem"),
    [
        (b"no archive at all", "a checksum does not fit|ends inside a header"),
        (gzipped(tar_of(a_file("other", b"x"))), "has no file 'm.gguf'"),
        (gzipped(tar_of(a_file("m.gguf", b"xy"))), "has 2 bytes where 1 belong"),
        (gzipped(tar_of(a_file("m.gguf", bytes(100_000))))[:-20], "ends too early|where 1 belong"),
    ],
)
async def test_an_archive_without_the_promised_file_is_refused(
    registry: FakeRegistry, tmp_path: Path, layer: bytes, problem: str
) -> None:
    url = f"http://{registry.address}/v2/x/blobs/{registry.add_blob(layer).digest}#member=m.gguf"
    order = FileOrder(url=url, destination="m.gguf", size=1, digest=digest_of(layer))
    with pytest.raises(DownloadDamaged, match=problem):
        await download(tmp_path, order)
    assert not (tmp_path / "m.gguf").exists()


async def test_an_archive_that_is_there_is_not_fetched_again(registry: FakeRegistry, tmp_path: Path) -> None:
    layer = gzipped(tar_of(a_file("m.gguf", CHAT)))
    url = f"http://{registry.address}/v2/x/blobs/{registry.add_blob(layer).digest}#member=m.gguf"
    order = FileOrder(url=url, destination="m.gguf", size=1, digest=digest_of(layer))
    with pytest.raises(DownloadDamaged):
        await download(tmp_path, order)
    got = await download(tmp_path, msgspec.structs.replace(order, size=None))
    assert (got.size, got.fetched_bytes) == (len(CHAT), 0)
    assert (tmp_path / "m.gguf").read_bytes() == CHAT


async def test_a_mirror_with_a_login_stands_in(registry: FakeRegistry) -> None:
    registry.username, registry.password, registry.uses_tokens = "me", "secret", True
    registry.add_manifest(
        "mirror/team/tiny", {"layers": [registry.add_blob(CHAT, "application/x")]}, OCI_MANIFEST, tag="1"
    )
    config = HubsConfig(oci_url=f"http://{registry.address}/mirror", oci_token="me:secret", images=ImagesConfig())
    async with HubAccess.open(config) as hub:
        made = await plan(hub, "quay.io/team/tiny:1")
        assert made.origin.resolved.startswith("oci://quay.io/team/tiny@sha256:")
        assert made.files[0].url.startswith(f"http://{registry.address}/v2/mirror/team/tiny/blobs/sha256:")
        assert (await hub.authorization(made.files[0])).removeprefix("Bearer ") in registry.tokens


async def test_a_login_that_somebody_makes_later_is_used(registry: FakeRegistry, tmp_path: Path) -> None:
    registry.username, registry.password = "me", "secret"
    registry.add_manifest("team/tiny", {"layers": [registry.add_blob(CHAT, "application/x")]}, OCI_MANIFEST, tag="1")
    images = ImagesConfig(auth_files=(tmp_path / "config.json",))
    async with HubAccess.open(HubsConfig(images=images)) as hub:
        with pytest.raises(HubRefused, match="wants a login, and there is none for it"):
            await plan(hub, f"oci://{registry.address}/team/tiny:1")
        auths = {registry.address: {"username": "me", "password": "secret"}}
        (tmp_path / "config.json").write_bytes(msgspec.json.encode({"auths": auths}))
        assert (await plan(hub, f"oci://{registry.address}/team/tiny:1")).name == "tiny"


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"layers": [{"mediaType": "x", "digest": "sha256:1", "size": 1}]}, "names a layer"),
        ({"layers": [{"mediaType": "x", "digest": "sha256:" + "0" * 64, "size": -1}]}, "names a layer"),
        ({"config": {}}, "names no layers"),
        ({"layers": 3}, "cannot be read"),
        ({"manifests": [{"digest": "x", "size": 1}]}, "names no digest"),
    ],
)
async def test_a_manifest_that_lies_is_refused(
    registry: FakeRegistry, hub: HubAccess, document: dict[str, object], problem: str
) -> None:
    registry.add_manifest("team/tiny", document, OCI_MANIFEST, tag="latest")
    with pytest.raises(HubRefused, match=problem):
        await plan(hub, f"oci://{registry.address}/team/tiny")


async def test_what_is_no_image_is_refused(hub: HubAccess) -> None:
    with pytest.raises(InvalidInput, match="is not an image reference"):
        await plan(hub, "oci://UPPER/..:x")


def _described(registry: FakeRegistry, content: bytes, media_type: str) -> dict[str, object]:
    blob = registry.add_blob(content, media_type)
    return {"mediaType": blob.media_type, "digest": blob.digest, "size": blob.size}
