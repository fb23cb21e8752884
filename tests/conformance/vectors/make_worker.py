"""Writes worker.json: our own questions to a worker about backends and models, from the facts of LocalAI's protocol.

What must be on the node's disk and what must run there is told by the answers; see `tests.kit.recorded_worker`.
Run `python tests/conformance/vectors/make_worker.py` after a change; the test plays the committed file.
"""

import json
from pathlib import Path
from typing import Any

ASKED = "test frontend -> LocalAI worker"
GALLERIES = json.dumps([{"url": "http://127.0.0.1:1/index.yaml", "name": "g"}])
STARTED = {"success": True, "address": "127.0.0.3:22301"}
CHANGED = {"success": True, "reports_stopped_processes": True}
GONE = {"matched": False, "freed": False, "terminated": True}
MATCHED = {"matched": True, "freed": False, "terminated": True, "address": "127.0.0.1:22301"}


def ask(subject: str, request: Any, reply: Any) -> dict[str, Any]:
    data = request if isinstance(request, str) else json.dumps(request)
    note = f"{subject} {data}"
    return {"direction": ASKED, "subject": f"nodes.n.{subject}", "bytes": data, "reply": reply, "note": note}


def failed(error: str, **more: Any) -> dict[str, Any]:
    return {"success": False, "error": error, **more}


def unchanged(error: str) -> dict[str, Any]:
    return failed(error, reports_stopped_processes=True)


def unheard(subject: str) -> dict[str, Any]:
    return {"direction": ASKED, "subject": f"nodes.n.{subject}", "bytes": "{}", "outcome": "no responders"}


def entry(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "is_system": False, "is_meta": False, **more}


MESSAGES = [
    ask("backend.install", {"backend": "mock", "model_id": "m1", "backend_galleries": GALLERIES}, STARTED),
    ask("backend.install", {"backend": "mock", "op_id": "o-1", "later": {"a": 1}}, STARTED),
    ask("backend.install", {"BACKEND": "my-alias", "Model_ID": "m2", "replica_index": 9}, STARTED),
    ask("backend.install", {"backend": "metamock", "model_id": "m3"}, STARTED),
    ask("backend.install", {"backend": "sysmock", "model_id": "m4", "replica_index": -1}, STARTED),
    ask("backend.install", {"backend": "dirb", "uri": "/srv/img1", "name": "dirb"}, STARTED),
    ask("backend.install", {"backend": "img2", "uri": "/srv/img2"}, STARTED),
    ask("backend.install", {"backend": "dirb", "uri": "/srv/img2", "name": "dirb", "force": True}, STARTED),
    ask("backend.install", {"backend": "mock", "force": True}, STARTED),
    ask(
        "backend.install",
        {"backend": "other", "uri": "/srv/img1", "name": "notother"},
        failed('backend "other" not found after install attempt'),
    ),
    ask("backend.install", {"backend": "MOCK"}, failed('backend "MOCK" not found after install attempt')),
    ask("backend.install", "", failed("invalid request: anything")),
    ask("backend.install", '{"backend":["mock"]}', failed("invalid request: anything")),
    ask("backend.install", "null", failed("installing backend from gallery: backend name is empty")),
    ask("backend.install", {"backend": "nope"}, failed("installing backend from gallery: no backend found with name")),
    ask("backend.install", {"backend": "mock", "backend_galleries": "{"}, failed("decoding backend galleries: any")),
    ask(
        "backend.install",
        {"uri": "oci://h/x:1"},
        failed("installing backend from gallery: specifying a name is required for OCI images"),
    ),
    ask(
        "backend.install",
        {"backend": "crash", "uri": "/srv/bk/crash"},
        failed("backend process crash#0 died during startup. Last stderr:\nline 6\nline 7"),
    ),
    ask(
        "backend.install",
        {"backend": "hang", "uri": "/srv/bk/hang"},
        failed("backend hang#0 did not become ready within 30s. Last stderr:\nstarting"),
    ),
    ask("backend.upgrade", {"backend": "mock"}, {**CHANGED, "stopped_process_keys": ["mock#0", "m1#0"]}),
    ask("backend.upgrade", {"backend": "mock", "op_id": ""}, CHANGED),
    ask("backend.upgrade", {"backend": "metamock"}, CHANGED),
    ask("backend.upgrade", {"backend": "dirb", "uri": "/srv/img1", "name": "dirb"}, CHANGED),
    ask("backend.upgrade", "[]", failed("invalid request: anything")),
    ask("backend.upgrade", "null", unchanged("upgrading backend from gallery: backend name is empty")),
    ask(
        "backend.upgrade",
        {"backend": "custom"},
        unchanged('upgrading backend from gallery: no backend found with name "custom"'),
    ),
    ask("backend.upgrade", {"backend": "mock", "backend_galleries": "{"}, unchanged("decoding backend galleries: a")),
    ask("backend.delete", {"backend": "custom"}, {**CHANGED, "stopped_process_keys": ["m2#0"]}),
    ask("backend.delete", {"backend": "al1"}, {**CHANGED, "stopped_process_keys": ["ext1#0"]}),
    ask("backend.delete", {"backend": "metamock"}, CHANGED),
    ask("backend.delete", {"backend": "gone"}, unchanged('backend "gone": backend not found')),
    ask("backend.delete", {"backend": "sysmock"}, unchanged('system backend "sysmock" cannot be deleted')),
    ask("backend.delete", "null", unchanged('backend "": backend not found')),
    ask("backend.delete", "{", failed("invalid request: anything")),
    ask("backend.list", "{}", {"backends": None}),
    ask(
        "backend.list",
        "%%%",
        {
            "backends": [
                entry("sysmock", is_system=True),
                entry("ext", installed_at="2026-01-02T03:04:05Z", uri="/srv/x"),
                entry("meta", is_meta=True, version="2"),
                entry("mock", gallery_url="http://g", version="1", uri="oci://h/m:1", digest="sha256:00"),
            ]
        },
    ),
    ask("models.running", "", {"models": []}),
    ask(
        "models.running",
        "{}",
        {
            "models": [
                {"model_id": "mock", "replica_index": -1, "address": "127.0.0.1:1"},
                {"model_id": "m#1", "replica_index": 2, "address": "127.0.0.1:2"},
            ]
        },
    ),
    ask("model.unload", {"model_name": "m1"}, {"success": True}),
    ask("model.unload", {"model_name": "m1", "address": "127.0.0.1:1"}, {"success": True}),
    ask("model.unload", "null", {"success": True}),
    ask("model.unload", "", failed("invalid request: anything")),
    ask(
        "model.stop",
        {"model_name": "m1", "process_key": "m1#1", "expected_address": "127.0.0.1:22301", "config_revision": "a"},
        {**MATCHED, "process_key": "m1#1", "error": "freeing process m1#1: anything"},
    ),
    ask(
        "model.stop",
        {"model_name": "m1", "process_key": "m1#0", "expected_address": "127.0.0.1:22301", "force": True},
        {**MATCHED, "process_key": "m1#0"},
    ),
    ask(
        "model.stop",
        {"model_name": "m1", "process_key": "m1#0", "expected_address": ""},
        {
            **MATCHED,
            "terminated": False,
            "process_key": "m1#0",
            "error": 'address mismatch for process m1#0: recorded "127.0.0.1:22301", expected ""',
        },
    ),
    ask("model.stop", {"process_key": "m1", "expected_address": ""}, {**GONE, "process_key": "m1"}),
    ask("model.stop", "null", {**GONE, "process_key": ""}),
    ask("model.stop", "{", {**GONE, "terminated": False, "process_key": "", "error": "invalid request: anything"}),
    ask("model.delete", {"model_name": "del"}, {"success": True}),
    ask("model.delete", {"model_name": "nothing"}, {"success": True}),
    ask("model.delete", {"model_name": "/etc"}, {"success": True}),
    ask("model.delete", "null", failed("empty model name")),
    ask("model.delete", "[]", failed("invalid request")),
    ask("model.delete", {"model_name": "a/../.."}, failed('model name "a/../.." escapes models directory')),
    unheard("backend.nothing"),
]

if __name__ == "__main__":
    path = Path(__file__).with_name("worker.json")
    path.write_text(json.dumps({"messages": MESSAGES}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
