"""Writes backends.json: our own vectors of a node's subjects for backends, from the facts of LocalAI's protocol.

Run `python tests/conformance/vectors/make_backends.py` after a change; the test plays the committed file.
"""

import json
from pathlib import Path
from typing import Any

FRONTEND = "LocalAI frontend -> LocalAI worker"
TEST = "test frontend -> LocalAI worker"
GALLERIES = json.dumps([{"url": "http://127.0.0.1:1/index.yaml", "name": "g"}])
ALL = [("mock", -1), ("mock", 0), ("m1", 0), ("m1", 1), ("m2", 0), ("m3", 0), ("m4", 0), ("custom", 0), ("dirb", 0)]


def message(direction: str, subject: str, data: str, reply: Any = None, note: str = "") -> dict[str, Any]:
    entry = {"direction": direction, "subject": f"nodes.n.{subject}", "bytes": data, "note": note}
    return entry if reply is None else {**entry, "reply": reply}


def install(request: dict[str, Any], reply: Any = None, *, by: str = FRONTEND, note: str = "") -> dict[str, Any]:
    return message(by, "backend.install", json.dumps(request), reply or ok(), note)


def ok() -> dict[str, Any]:
    return {"success": True, "address": "127.0.0.3:22301"}


def refused(data: str) -> dict[str, Any]:
    reply = {"success": False, "error": "invalid request: whatever"}
    return message(TEST, "backend.install", data, reply, f"cannot be read: {data!r}")


def failed(request: dict[str, Any], note: str) -> dict[str, Any]:
    return install(request, {"success": False, "error": "whatever"}, by=TEST, note=note)


def listed(*backends: dict[str, Any]) -> dict[str, Any]:
    return message(FRONTEND, "backend.list", "{}", {"backends": list(backends) or None})


def stop(data: str, note: str) -> dict[str, Any]:
    return message(TEST, "backend.stop", data, note=note)


def running(*keys: tuple[str, int], note: str) -> dict[str, Any]:
    models = [{"model_id": model, "replica_index": index, "address": "127.0.0.1:22301"} for model, index in keys]
    return message(TEST, "models.running", "{}", {"models": models}, note)


def without(*gone: tuple[str, int]) -> list[tuple[str, int]]:
    return [key for key in ALL if key not in gone]


MESSAGES = [
    install({"backend": "mock", "backend_galleries": GALLERIES, "op_id": "o-1"}, note="administrator's"),
    install({"backend": "mock", "model_id": "m1", "backend_galleries": GALLERIES}, note="cold load"),
    install({"backend": "mock", "model_id": "m1", "replica_index": 7}, note="a replica beyond the node's maximum"),
    install({"backend": "my-alias", "model_id": "m2"}, note="by alias"),
    install({"backend": "metamock", "model_id": "m3"}, note="by the name of a meta backend"),
    install({"backend": "sysmock", "model_id": "m4"}, note="of the system"),
    install({"BACKEND": "mock", "Model_ID": "caseless", "zzz": {"a": 1}}, by=TEST, note="other letters"),
    install({"backend": "mock", "replica_index": -1}, by=TEST, note="negative replica"),
    install({"backend": "custom", "uri": "oci://h/c:v1", "name": "custom", "alias": "my-alias"}, note="external"),
    install({"backend": "mock", "force": True, "op_id": "o-2"}, note="forced"),
    *map(refused, ["", "{", "[]", "5", '"mock"', '{"backend":5}', '{"backend":"mock","replica_index":"0"}']),
    message(TEST, "backend.install", "null", {"success": False, "error": "whatever"}, "null"),
    failed({"backend": "nope"}, "unknown"),
    failed({"backend": "MOCK", "model_id": "m5"}, "other letter case"),
    failed({"backend": "g@mock"}, "with its gallery"),
    failed({"backend": "../mock"}, "a path"),
    failed({"backend": "mock", "model_id": "new", "backend_galleries": "{"}, "galleries that cannot be read"),
    message(FRONTEND, "backend.stop", '{"backend":"m1"}', note="by model"),
    message(FRONTEND, "backend.stop", '{"backend":"","force":true}', note="all, forced"),
    listed(),
    listed(
        {"name": "sysmock", "is_system": True, "is_meta": False},
        {"name": "ext", "is_system": False, "is_meta": False, "installed_at": "2026-01-02T03:04:05Z", "uri": "oci://x"},
        {
            "name": "mock",
            "is_system": False,
            "is_meta": True,
            "installed_at": "2026-01-02T03:04:05Z",
            "gallery_url": "http://127.0.0.1:1/index.yaml",
            "version": "1.0.0",
            "uri": "http://x",
            "digest": "sha256:0",
        },
    ),
    running(*ALL, note="before stops"),
    stop("{bad", "cannot be read"),
    stop("[]", "a list"),
    stop('{"backend":"unknown"}', "unknown"),
    running(*ALL, note="none of these stops anything"),
    stop('{"backend":"m1#1"}', "one process"),
    running(*without(("m1", 1)), note="after one process"),
    stop('{"backend":"m1"}', "a model"),
    running(*without(("m1", 1), ("m1", 0)), note="after a model"),
    stop('{"backend":"my-alias"}', "an alias"),
    running(*without(("m1", 1), ("m1", 0), ("m2", 0), ("custom", 0)), note="after an alias"),
    stop('{"backend":"mock"}', "a backend"),
    running(("m3", 0), ("m4", 0), ("dirb", 0), note="after a backend"),
    stop("", "nothing said: everything"),
    running(note="after everything"),
    install({"backend": "mock", "model_id": "m1"}, by=TEST, note="started again"),
    stop("null", "null: everything"),
    install({"backend": "mock", "model_id": "m1"}, by=TEST, note="install right after backend.stop"),
    running(note="after race"),
]

if __name__ == "__main__":
    text = "[\n  " + ",\n  ".join(json.dumps(entry) for entry in MESSAGES) + "\n]"
    Path(__file__).with_name("backends.json").write_text(f'{{"messages": {text}}}\n', encoding="utf-8")
