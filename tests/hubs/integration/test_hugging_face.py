"""Repositories of Hugging Face become plans: pinned, with sizes and digests, and with advice where they are refused."""

import hashlib
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest
import yaml

from corral.base.errors import InvalidInput
from corral.hubs.access import HubAccess
from corral.hubs.choose import MachineMemory, PullWish
from corral.hubs.config import HubsConfig
from corral.hubs.listings import HubModelMissing, HubRefused, HubUnavailable
from corral.hubs.plans import PullPlan
from corral.hubs.references import parse_reference
from corral.hubs.resolve import plan_file, plan_reference
from tests.kit.file_server import FileServer, Stall, answering, endless
from tests.kit.gguf import LLAMA, gguf
from tests.kit.hub_server import COMMIT, HuggingFaceServer, git_sha1

CHAT = gguf(**LLAMA, tokenizer__chat_template="{{ messages }}")
PROJECTOR = gguf(general__architecture="clip", clip__has_vision_encoder=True)
TOKEN = "hf_secret"


@pytest.fixture
def server() -> Iterator[HuggingFaceServer]:
    with HuggingFaceServer() as server:
        yield server


@pytest.fixture
async def hub(server: HuggingFaceServer) -> AsyncIterator[HubAccess]:
    async with HubAccess.open(HubsConfig(hf_url=server.base)) as hub:
        yield hub


async def plan(hub: HubAccess, text: str, **wish: object) -> PullPlan:
    return await plan_reference(parse_reference(text), PullWish(text=text, **wish), hub)  # type: ignore[arg-type]


async def test_a_repository_becomes_a_plan(server: HuggingFaceServer, hub: HubAccess) -> None:
    server.add_repository("org/Chat-GGUF", {"chat-Q4_K_M.gguf": CHAT, "README.md": b"x"}, cardData={"license": "mit"})
    made = await plan(hub, "hf://org/Chat-GGUF")
    (file,) = made.files
    assert (made.name, file.path, file.size) == ("chat", "chat/chat-Q4_K_M.gguf", len(CHAT))
    assert (file.hub, file.digest) == ("hf", f"sha256:{hashlib.sha256(CHAT).hexdigest()}")
    assert file.url == server.url(f"/org/Chat-GGUF/resolve/{COMMIT}/chat-Q4_K_M.gguf")
    assert made.origin.resolved == f"hf://org/Chat-GGUF@{COMMIT}"
    assert (made.origin.reference, made.origin.licence) == ("hf://org/Chat-GGUF", "mit")
    assert [(choice.name, choice.is_chosen, choice.needed_bytes > len(CHAT)) for choice in made.choices] == [
        ("Q4_K_M", True, True)
    ]
    assert yaml.safe_load(made.config) == {
        "name": "chat",
        "backend": "llama-cpp",
        "parameters": {"model": "chat/chat-Q4_K_M.gguf"},
        "context_size": 8192,
        "template": {"use_tokenizer_template": True},
        "known_usecases": ["chat", "completion"],
    }


async def test_builds_are_shown_and_the_best_that_fits_is_taken(server: HuggingFaceServer, hub: HubAccess) -> None:
    sizes = {"Q8_0": 900_000, "Q4_K_M": 500_000, "Q2_K": 300_000}
    server.add_repository("org/m", {f"m-{name}.gguf": CHAT + bytes(size) for name, size in sizes.items()})
    made = await plan(hub, "hf://org/m", context=256)
    assert [(choice.name, choice.is_chosen, choice.fits) for choice in made.choices] == [
        ("Q8_0", False, None),
        ("Q4_K_M", True, None),
        ("Q2_K", False, None),
    ]
    need = {choice.name: choice.needed_bytes for choice in made.choices}
    small = await plan(hub, "hf://org/m", context=256, machines=(MachineMemory(vram_bytes=need["Q2_K"]),))
    assert [choice.name for choice in small.choices if choice.is_chosen] == ["Q2_K"]
    assert [choice.fits for choice in small.choices] == [False, False, True]
    none = await plan(hub, "hf://org/m", context=256, machines=(MachineMemory(vram_bytes=1000),))
    assert "no build fits" in none.notes[0]
    asked = await plan(hub, "hf.co/org/m:q8_0")
    assert asked.files[0].path == "m/m-Q8_0.gguf"
    with pytest.raises(InvalidInput, match=r"build: 'Q3_K_M' is not offered; there are Q8_0, Q4_K_M, Q2_K"):
        await plan(hub, "hf://org/m", build="Q3_K_M")


async def test_parts_and_the_projector_are_one_model(server: HuggingFaceServer, hub: HubAccess) -> None:
    parts = {f"q/v-Q4_K_M-0000{number}-of-00002.gguf": CHAT for number in (1, 2)}
    server.add_repository("org/v", {**parts, "mmproj-F16.gguf": PROJECTOR, "imatrix.gguf": CHAT})
    for reference in ("hf://org/v", "hf://org/v/q", "hf://org/v/q/v-Q4_K_M-00002-of-00002.gguf"):
        made = await plan(hub, reference, name="my eyes")
        assert [file.path for file in made.files] == [
            "my-eyes/v-Q4_K_M-00001-of-00002.gguf",
            "my-eyes/v-Q4_K_M-00002-of-00002.gguf",
            "my-eyes/mmproj-F16.gguf",
        ]


async def test_large_files_may_be_elsewhere_and_tokens_stay(server: HuggingFaceServer) -> None:
    with FileServer() as cdn:
        server.add_repository("org/m", {"m.gguf": CHAT}, cdn=cdn)
        async with HubAccess.open(HubsConfig(hf_url=server.base, hf_token=TOKEN)) as hub:
            made = await plan(hub, "hf://org/m")
            assert await hub.authorization(made.files[0]) == f"Bearer {TOKEN}"
        assert {request.headers.get("Authorization") for request in server.requests} == {f"Bearer {TOKEN}"}
        assert cdn.requests
        assert not any("Authorization" in request.headers for request in cdn.requests)


async def test_a_gated_repository_says_what_to_do(server: HuggingFaceServer, hub: HubAccess) -> None:
    server.add_repository("org/m", {"m.gguf": CHAT}, token=TOKEN, is_gated=True)
    with pytest.raises(HubRefused, match=rf"accept its licence at {server.base}/org/m and set HF_TOKEN"):
        await plan(hub, "hf://org/m")
    async with HubAccess.open(HubsConfig(hf_url=server.base, hf_token=TOKEN)) as allowed:
        assert (await plan(allowed, "hf://org/m")).name == "m"


async def test_what_is_missing_is_told_with_near_names(server: HuggingFaceServer, hub: HubAccess) -> None:
    server.add_repository("org/llama-3-gguf", {"a-Q4_K_M.gguf": CHAT})
    with pytest.raises(HubModelMissing, match=r"no repository org/lama-3-gguf; there is org/llama-3-gguf; .*HF_TOKEN"):
        await plan(hub, "hf://org/lama-3-gguf")
    with pytest.raises(HubModelMissing, match=r"has no 'a-Q4_K_S.gguf'; there is a-Q4_K_M.gguf"):
        await plan(hub, "hf://org/llama-3-gguf/a-Q4_K_S.gguf")
    with pytest.raises(HubModelMissing, match=r"org/llama-3-gguf has no branch, tag or commit 'v2'"):
        await plan(hub, "hf://org/llama-3-gguf@v2")


async def test_a_crowded_hub_says_how_long_to_wait(server: HuggingFaceServer, hub: HubAccess) -> None:
    server.add_repository("org/m", {"m.gguf": CHAT})
    server.faults["/api/models/org/m/revision/main"] += [answering(429, retry_after="120")]
    with pytest.raises(HubUnavailable, match=r"answered 429 .*asks to wait 2m 0s") as caught:
        await plan(hub, "hf://org/m")
    assert caught.value.retry_after == 120
    server.faults["/api/models/org/m/revision/main"] += [answering(503)]
    assert (await plan(hub, "hf://org/m")).name == "m"


async def test_a_hub_that_hangs_or_never_ends_is_given_up(server: HuggingFaceServer) -> None:
    server.add_repository("org/m", {"m.gguf": CHAT})
    config = HubsConfig(hf_url=server.base, answer_timeout=timedelta(milliseconds=200))
    stalls = [Stall(), Stall()]
    async with HubAccess.open(config) as hub:
        server.faults["/api/models/org/m/revision/main"] += stalls
        with pytest.raises(HubUnavailable, match="does not answer in time"):
            await plan(hub, "hf://org/m")
        for stall in stalls:
            stall.let_go()
        server.faults["/api/models/org/m/revision/main"] += [endless(b"x" * (1 << 20))] * 2
        with pytest.raises(HubUnavailable):
            await plan(hub, "hf://org/m")


async def test_names_of_every_kind_survive(server: HuggingFaceServer, hub: HubAccess) -> None:
    server.add_repository("org/m", {"ein Modell #1 größer%-Q4_0.gguf": CHAT})
    made = await plan(hub, "hf://org/m", name="Größe 1")
    assert (made.name, made.files[0].path) == ("Größe 1", "grosse-1/ein Modell #1 größer%-Q4_0.gguf")
    assert made.files[0].url.endswith("/ein%20Modell%20%231%20gr%C3%B6%C3%9Fer%25-Q4_0.gguf")
    config = yaml.safe_load(made.config)
    assert (config["name"], config["parameters"]["model"]) == (made.name, made.files[0].path)


async def test_sizes_come_from_the_tree_where_names_have_none(server: HuggingFaceServer, hub: HubAccess) -> None:
    server.add_tree("org/m", {"m.gguf": CHAT, "config.json": b"{}", "z.txt": b"1"}, page=2)
    planned = await plan_file("hf://org/m/config.json", "m/config.json", "", hub)
    assert (planned.size, planned.digest) == (2, f"git-sha1:{git_sha1(b'{}')}")
    assert (await plan(hub, "hf://org/m")).files[0].size == len(CHAT)


async def test_a_public_host_does_not_lead_into_the_own_network(server: HuggingFaceServer) -> None:
    async def is_own(host: str) -> bool:
        return host == "localhost"

    with FileServer(host="localhost") as inside:
        server.add_repository("org/m", {"m.gguf": CHAT}, cdn=inside)
        async with HubAccess.open(HubsConfig(hf_url=server.base), is_own=is_own) as hub:
            with pytest.raises(HubRefused, match=r"localhost, which is in the own network; hubs.private_redirects"):
                await plan(hub, "hf://org/m")
        assert not inside.requests
        async with HubAccess.open(HubsConfig(hf_url=server.base, private_redirects=True), is_own=is_own) as hub:
            assert (await plan(hub, "hf://org/m")).name == "m"


async def test_safetensors_become_a_directory(server: HuggingFaceServer, hub: HubAccess) -> None:
    files = {
        "config.json": b'{"max_position_embeddings": 2048}',
        "model-00001-of-00002.safetensors": b"1",
        "model-00002-of-00002.safetensors": b"2",
        "tokenizer.json": b"{}",
        "original/params.json": b"{}",
        "pytorch_model.bin": b"old",
        "README.md": b"x",
    }
    server.add_repository("org/Big", files)
    made = await plan(hub, "hf://org/Big", machines=(MachineMemory(vram_bytes=1),))
    config = yaml.safe_load(made.config)
    assert (config["backend"], config["parameters"]["model"], config["context_size"]) == ("vllm", "big", 2048)
    assert [(choice.files, choice.fits) for choice in made.choices] == [(4, False)]
    assert [file.path for file in made.files] == [
        "big/config.json",
        "big/model-00001-of-00002.safetensors",
        "big/model-00002-of-00002.safetensors",
        "big/tokenizer.json",
    ]


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"sha": "../x"}', b'{"sha": "12", "siblings": 3}'])
async def test_an_answer_that_is_no_listing_is_refused(server: HuggingFaceServer, hub: HubAccess, body: bytes) -> None:
    server.add("/api/models/org/m/revision/main", body)
    with pytest.raises(HubRefused):
        await plan(hub, "hf://org/m")


async def test_a_path_that_leads_out_is_refused(server: HuggingFaceServer, hub: HubAccess) -> None:
    server.add_repository("org/m", {"../../etc/x.gguf": CHAT})
    with pytest.raises(HubRefused, match="lists a file that cannot be used"):
        await plan(hub, "hf://org/m")


async def test_a_file_that_is_no_gguf_is_named(server: HuggingFaceServer, hub: HubAccess) -> None:
    server.add_repository("org/m", {"m.gguf": b"<html>login</html>"})
    with pytest.raises(InvalidInput, match=r"reference: m.gguf cannot be used: it does not begin like a GGUF"):
        await plan(hub, "hf://org/m")
