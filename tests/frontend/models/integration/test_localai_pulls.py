"""LocalAI's pages and programs install models: of galleries, of hubs, by definitions."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from corral.base.ids import OperationId
from corral.base.private_files import write_private
from corral.bus.port import Bus
from corral.frontend.models.decide.pulling import PullPolicy, plan_of
from corral.frontend.models.stores import place_of
from corral.frontend.operations.decide.intent import IntentKind
from corral.frontend.store.db import Database
from corral.hubs.access import HubAccess
from corral.hubs.config import HubsConfig
from corral.hubs.plans import PullPlan
from tests.kit.clock import ManualClock
from tests.kit.galleries import open_gallery_of_models
from tests.kit.gguf import LLAMA, gguf
from tests.kit.hub_server import COMMIT, HuggingFaceServer
from tests.kit.world import World, open_world

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)

WEIGHTS = gguf(**LLAMA, tokenizer__chat_template="{{ messages }}")
INDEX = """
- name: talker
  license: mit
  overrides: {backend: llama-cpp, parameters: {model: t.gguf}}
  files: [{filename: t.gguf, uri: 'hf://org/talker/t-Q4_K_M.gguf'}]
  variants: [{model: talker-fast}]
- name: talker-fast
  overrides: {backend: llama-cpp, parameters: {model: f.gguf}}
  files: [{filename: f.gguf, uri: 'hf://org/talker/t-Q8_0.gguf'}]
- name: lost
  overrides: {backend: llama-cpp, parameters: {model: l.gguf}}
  files: [{filename: l.gguf, uri: 'hf://org/talker/nothing.gguf'}]
- name: trusted
  overrides: {backend: vllm, trust_remote_code: true, parameters: {model: t.gguf}}
  files: [{filename: t.gguf, uri: 'hf://org/talker/t-Q4_K_M.gguf'}]
- name: wrong
  overrides: {backend: llama-cpp, context_size: many, parameters: {model: t.gguf}}
- name: whole
  overrides:
    backend: vllm-cpp
    parameters: {model: org/whole}
    artifacts:
      - {name: model, target: model, source: {type: huggingface, repo: org/whole, ignore_patterns: ['*.md']}}
      - {name: voice, target: companion, source: {type: huggingface, repo: org/voice, allow_patterns: ['*.nemo']}}
- name: whole-lost
  overrides:
    backend: vllm-cpp
    parameters: {model: org/voice}
    artifacts: [{name: model, source: {type: huggingface, repo: org/voice, allow_patterns: ['*.bin']}}]
- name: whole-elsewhere
  overrides:
    backend: vllm-cpp
    parameters: {model: org/voice}
    artifacts: [{name: model, source: {type: modelscope, repo: org/voice}}]
"""
DEFINITION = """
name: defined
config_file: |
  name: called
  backend: llama-cpp
  contxt_size: 5
  parameters: {model: t.gguf}
files:
  - {filename: t.gguf, uri: 'hf://org/talker/t-Q4_K_M.gguf'}
"""


@pytest.fixture
def server() -> Iterator[HuggingFaceServer]:
    with HuggingFaceServer() as server:
        server.add_repository("org/talker", {"t-Q4_K_M.gguf": WEIGHTS, "t-Q8_0.gguf": WEIGHTS + bytes(99)})
        server.add_repository("org/whole", {"config.json": b"{}", "part/w.safetensors": b"weights", "README.md": b"#"})
        server.add_repository("org/voice", {"v.nemo": b"voice", "v.txt": b"text"})
        yield server


@pytest.fixture
async def world(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path, server: HuggingFaceServer
) -> AsyncIterator[World]:
    folder = tmp_path / "gallery"
    folder.mkdir()
    (folder / "models.yaml").write_text(INDEX, encoding="utf-8")
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(HubAccess.open(HubsConfig(hf_url=server.base)))
        lookups = await stack.enter_async_context(open_gallery_of_models(folder, hub=hub))
        policy = PullPolicy(free_bytes=0, connections=1)
        yield await stack.enter_async_context(open_world(database, clock, bus, tmp_path, lookups=lookups, pulls=policy))


async def post(world: World, path: str, body: object = None, *, status: int = 200) -> Any:
    answer = await world.frontend.call("POST", path, body)
    assert answer.status == status, answer.body
    return answer.json()


async def plan_for(world: World, job: str) -> PullPlan:
    """What the operation of a job downloads and adds."""
    context = world.control.context
    operation = await context.operations.service.get(OperationId(job))
    store = context.pulls.stores.own
    assert store is not None
    intent = await context.operations.stores.intents.get((place_of(store.id), IntentKind.PULL, operation.subject))
    assert intent is not None
    return plan_of(intent.payload)


async def test_a_page_installs_a_gallerys_model(world: World) -> None:
    started = await post(world, "/api/models/install/m@talker")
    assert started["message"] == "Installation started"
    plan = await plan_for(world, started["jobID"])
    assert (plan.name, plan.origin.gallery, plan.origin.licence) == ("talker", "m@talker", "mit")
    assert [(file.path, file.size) for file in plan.files] == [("t.gguf", len(WEIGHTS))]
    assert plan.files[0].shape is not None
    page = (await world.frontend.call("GET", "/api/models")).json()
    assert page["processingModels"] == {"talker": started["jobID"]}
    assert page["taskTypes"] == {"talker": "Installation"}
    await world.control.context.operations.dispatcher.tick()
    job = (await world.frontend.call("GET", f"/api/models/job/{started['jobID']}")).json()
    assert (job["completed"], job["deletion"]) == (True, False)
    assert (world.models / "t.gguf").read_bytes() == WEIGHTS
    shown = (await world.frontend.call("GET", "/api/models/config-json/talker")).json()
    assert shown["parameters"]["model"] == "t.gguf"
    page = (await world.frontend.call("GET", "/api/models")).json()
    assert [(one["name"], one["installed"]) for one in page["models"]][:2] == [("talker", True), ("talker-fast", False)]
    assert page["installedModels"] == 2


async def test_repositories_of_an_entry_are_downloaded_to_where_localai_has_them(
    world: World, server: HuggingFaceServer
) -> None:
    job = (await post(world, "/api/models/install/whole"))["jobID"]
    await world.control.context.operations.dispatcher.tick()

    assert (await world.frontend.call("GET", f"/api/models/job/{job}")).json()["completed"] is True
    shown = (await world.frontend.call("GET", "/api/models/config-json/whole")).json()
    own, voice = (artifact["resolved"] for artifact in shown["artifacts"])
    assert shown["parameters"]["model"] == "org/whole"
    assert own == {"endpoint": server.base, "revision": COMMIT, "cache_key": own["cache_key"]}
    assert voice["primary_file"] == "v.nemo"
    root = world.models / ".artifacts/huggingface"
    assert (root / own["cache_key"] / "snapshot/config.json").read_bytes() == b"{}"
    assert (root / own["cache_key"] / "snapshot/part/w.safetensors").read_bytes() == b"weights"
    assert not (root / own["cache_key"] / "snapshot/README.md").exists()
    assert [file.name for file in (root / voice["cache_key"] / "snapshot").iterdir()] == ["v.nemo"]

    await world.node("w1")
    await world.loads.ensure("whole")
    await world.loads.tick()
    (told,) = world.loader.told
    assert (told.Model, told.ModelFile) == ("org/whole", str(root / own["cache_key"] / "snapshot"))
    assert f"voice:.artifacts/huggingface/{voice['cache_key']}/snapshot" in told.Options


async def test_a_dry_run_of_an_entry_with_one_build_tells_its_memory(world: World) -> None:
    plan = await post(world, "/api/v1/pulls", {"reference": "talker-fast", "dry_run": True})
    assert plan["choices"] == []
    assert plan["memory_bytes"] > 4096 * 32 * 8 * 256 * 2, "the cache of 4096 tokens"
    both = await post(world, "/api/v1/pulls", {"reference": "talker", "dry_run": True})
    assert all(choice["needed_bytes"] > 0 for choice in both["choices"])


async def test_a_page_may_name_the_build(world: World) -> None:
    job = (await post(world, "/api/models/install/talker?variant=talker-fast"))["jobID"]
    plan = await plan_for(world, job)
    assert (plan.name, plan.files[0].path) == ("talker", "f.gguf")
    refused = await post(world, "/api/models/install/talker?variant=talker-slow", status=400)
    assert "has no variant 'talker-slow'" in refused["error"]


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("talkr", 404, "did you mean talker"),
        ("lost", 404, "nothing.gguf"),
        ("wrong", 400, "context_size"),
        ("whole-lost", 404, "org/voice"),
        ("whole-elsewhere", 400, "artifacts[0].source.type"),
    ],
)
async def test_what_cannot_be_had_is_no_job(world: World, name: str, status: int, said: str) -> None:
    assert said in (await post(world, f"/api/models/install/{name}", status=status))["error"]
    assert await world.control.context.operations.stores.operations.current() == []


async def test_programs_apply_a_gallerys_model_with_changes(world: World) -> None:
    body = {
        "id": "m@talker",
        "name": "mine",
        "overrides": {"context_size": 512, "parameters": {"top_k": 3}},
        "files": [{"filename": "more.gguf", "uri": "hf://org/talker/t-Q8_0.gguf"}],
    }
    applied = await post(world, "/models/apply", body)
    assert applied["status"].endswith(f"/models/jobs/{applied['uuid']}")
    plan = await plan_for(world, applied["uuid"])
    assert plan.name == "mine"
    assert yaml.safe_load(plan.config) == {
        "name": "mine",
        "backend": "llama-cpp",
        "parameters": {"model": "t.gguf", "top_k": 3},
        "context_size": 512,
    }
    assert [file.path for file in plan.files] == ["t.gguf", "more.gguf"]
    await world.control.context.operations.dispatcher.tick()
    found = (await world.frontend.call("GET", "/api/v1/gallery-models?term=talker")).json()
    assert [one["is_installed"] for one in found["items"]] == [True, False]


async def test_programs_apply_a_definition(world: World, server: HuggingFaceServer) -> None:
    url = server.add("/defined.yaml", DEFINITION.encode())
    plan = await plan_for(world, (await post(world, "/models/apply", {"url": url}))["uuid"])
    assert (plan.name, plan.origin.resolved, plan.origin.gallery) == ("called", url, "")
    assert any("contxt_size" in note for note in plan.notes)
    renamed = await post(world, "/models/apply", {"config_url": url, "name": "other"})
    assert (await plan_for(world, renamed["uuid"])).name == "other"
    missing = await post(world, "/models/apply", {"url": server.url("/none.yaml")}, status=409)
    assert "/none.yaml answers 404" in missing["error"]["message"]


async def test_programs_apply_a_reference(world: World) -> None:
    plan = await plan_for(world, (await post(world, "/models/apply", {"id": "hf://org/talker:Q8_0"}))["uuid"])
    assert plan.files[0].path.endswith("t-Q8_0.gguf")


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/models/apply", {}, "id: is missing"),
        ("/models/apply", {"id": 3}, "invalid request body: "),
        ("/models/apply", {"id": "talker", "files": [{"filename": "../x", "uri": "u"}]}, "files[0].filename: "),
        ("/models/apply", {"id": "talker", "overrides": {"context_size": "x"}}, "config: "),
        ("/models/import-uri", {}, "uri: is missing"),
        ("/models/import-uri", {"uri": "gopher://x"}, "reference: the scheme gopher:// is unknown"),
    ],
)
async def test_what_cannot_be_asked_for(world: World, path: str, body: object, said: str) -> None:
    assert (await post(world, path, body, status=400))["error"]["message"].startswith(said)


async def test_programs_import_from_a_hub(world: World) -> None:
    preferences = {"name": "mine", "description": "My own.", "quantizations": "Q8_0,Q4_K_M"}
    applied = await post(world, "/models/import-uri", {"uri": "huggingface://org/talker", "preferences": preferences})
    plan = await plan_for(world, applied["uuid"])
    assert plan.name == "mine"
    assert yaml.safe_load(plan.config)["description"] == "My own."
    assert plan.files[0].size == len(WEIGHTS) + 99


async def test_null_preferences_are_none(world: World) -> None:
    body = {"uri": "hf://org/talker/t-Q4_K_M.gguf", "preferences": None}
    plan = await plan_for(world, (await post(world, "/models/import-uri", body))["uuid"])
    assert plan.files[0].size == len(WEIGHTS)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/pulls", {"reference": "{file}"}),
        ("/api/v1/pulls", {"reference": " FILE://{file}", "dry_run": True}),
        ("/models/apply", {"id": "m@talker", "files": [{"filename": "x.gguf", "uri": "{file}"}]}),
        ("/models/apply", {"url": "file://{file}"}),
        ("/models/import-uri", {"uri": "~/../..{file}"}),
    ],
)
async def test_operators_take_no_files_of_the_frontends_machine(
    world: World, tmp_path: Path, path: str, body: dict[str, object]
) -> None:
    """What becomes a model goes to nodes: with one of them, an operator would read any file that the frontend can."""
    (tmp_path / "private.gguf").write_bytes(WEIGHTS)
    text = json.dumps(body).replace("{file}", str(tmp_path / "private.gguf"))
    made = await post(world, "/api/v1/keys", {"name": "o", "scopes": ["operator"]}, status=201)

    refused = await world.frontend.call("POST", path, json.loads(text), key=made["key"])

    assert (refused.status, b"machine.read" in refused.body) == (403, True), refused.body
    if "apply" not in path:  # administrators may, with files that have nothing to do with the frontend
        assert (await world.frontend.call("POST", path, json.loads(text))).status in (200, 202, 404)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/pulls", {"reference": "{url}"}),
        ("/api/v1/pulls", {"reference": " {url}".replace("http", "HTTP"), "dry_run": True}),
        ("/models/apply", {"id": "m@talker", "files": [{"filename": "x.gguf", "uri": "{url}"}]}),
        ("/models/import-uri", {"uri": "{url}"}),
        ("/api/v1/pulls", {"reference": "oci://{registry}/team/model:1"}),
        ("/api/v1/pulls", {"reference": " Ollama://{registry}/team/model:1", "dry_run": True}),
        ("/models/apply", {"id": "m@talker", "files": [{"filename": "x.gguf", "uri": "oci://{registry}/a/b:1"}]}),
        ("/models/import-uri", {"uri": "ollama://{registry}/a/b"}),
    ],
)
async def test_operators_take_no_answers_of_programs_on_the_frontends_loopback(
    world: World, server: HuggingFaceServer, path: str, body: dict[str, object]
) -> None:
    """Programs that only the frontend's machine reaches often ask nobody for a key."""
    text = json.dumps(body).replace("{url}", server.add("/inside/private.gguf", WEIGHTS))
    text = text.replace("{registry}", server.base.removeprefix("http://"))
    made = await post(world, "/api/v1/keys", {"name": "o", "scopes": ["operator"]}, status=201)
    before = len(server.requests)

    refused = await world.frontend.call("POST", path, json.loads(text), key=made["key"])

    assert (refused.status, b"machine.read" in refused.body) == (403, True), refused.body
    assert len(server.requests) == before
    allowed = await world.frontend.call("POST", path, json.loads(text))
    # That server is no registry, so what an administrator asks one for is not found.
    assert allowed.status in (200, 202) or ("/inside/" not in text and allowed.status != 403), allowed.body


@pytest.mark.parametrize("name", ["secrets.key", "link.gguf", "corral.db-wal"])
async def test_nobody_makes_a_model_of_the_frontends_own_secrets(world: World, name: str) -> None:
    data = world.control.context.config.data
    write_private(data / "secrets.key", WEIGHTS)
    (data / "corral.db-wal").write_bytes(WEIGHTS)
    (data / "link.gguf").symlink_to(data / "secrets.key")
    body = {"id": "m@talker", "files": [{"filename": "x.gguf", "uri": str(data / name)}]}

    refused = await world.frontend.call("POST", "/models/apply", body)

    assert refused.status == 400
    assert b"belongs to this frontend" in refused.body


async def test_a_definition_from_elsewhere_names_nothing_on_the_frontends_loopback(
    world: World, server: HuggingFaceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a test can ask is on loopback, so it tells what is there by its path."""
    monkeypatch.setattr("corral.frontend.models.offers.names_loopback", lambda url: "/inside/" in url)
    inside = server.add("/inside/private.gguf", WEIGHTS)
    url = server.add("/named.yaml", DEFINITION.replace("hf://org/talker/t-Q4_K_M.gguf", inside).encode())

    refused = await world.frontend.call("POST", "/models/apply", {"url": url})

    assert (refused.status, b"a file of this machine" in refused.body) == (409, True), refused.body


async def test_operators_pull_no_code_that_no_gallery_has(world: World, server: HuggingFaceServer) -> None:
    definition = DEFINITION.replace("contxt_size: 5", "trust_remote_code: true")
    url = server.add("/trusting.yaml", definition.encode())
    key = (await post(world, "/api/v1/keys", {"name": "o", "scopes": ["operator"]}, status=201))["key"]
    more = {"filename": "t.gguf", "uri": "hf://org/talker/t-Q8_0.gguf"}
    asks: list[dict[str, object]] = [
        {"url": url},
        {"id": "m@talker", "overrides": {"trust_remote_code": True}},
        {"id": "m@trusted", "overrides": {"parameters": {"model": "evil/weights"}}},
        {"id": "m@trusted", "files": [more]},
    ]
    for body in asks:
        refused = await world.frontend.call("POST", "/models/apply", body, key=key)
        assert (refused.status, b"backends.trust" in refused.body) == (403, True), refused.body
    allowed = {"id": "m@trusted", "overrides": {"context_size": 99}}
    assert (await world.frontend.call("POST", "/models/apply", allowed, key=key)).status == 200
    assert (await world.frontend.call("POST", "/models/apply", {"url": url})).status == 200
