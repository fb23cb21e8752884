"""Writes messages.json: our own vectors of every kind of message, from the facts of LocalAI's protocol.

`like` names the recording whose form a message has. Run `python tests/conformance/vectors/make_messages.py` after a
change; the test reads the committed file.
"""

import json
from pathlib import Path
from typing import Any

FRONTEND = "LocalAI frontend -> LocalAI worker"
TEST = "test frontend -> LocalAI worker"
ADMIN = "admin -> LocalAI frontend"
HASH = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
GALLERIES = json.dumps([{"url": "http://127.0.0.1:1/index.yaml", "name": "g"}])
TIME = "2026-01-02T03:04:05.123456789Z"
BAD: dict[str, Any] = {"success": False, "error": "invalid request: whatever"}

Message = dict[str, Any]


def ask(suffix: str, request: Any, reply: Any, *, by: str = FRONTEND, note: str = "") -> Message:
    data = request if isinstance(request, str) else json.dumps(request)
    subject = f"nodes.n-1.{suffix}"
    return {"like": "nats", "direction": by, "subject": subject, "bytes": data, "reply": reply, "note": note}


def tell(subject: str, payload: Any, *, by: str = "LocalAI frontend -> all frontends") -> Message:
    data = payload if isinstance(payload, str) else json.dumps(payload)
    return {"like": "nats", "direction": by, "subject": subject, "bytes": data}


def unanswered(suffix: str, request: str) -> Message:
    return {
        "like": "nats",
        "direction": TEST,
        "subject": f"nodes.n-1.{suffix}",
        "bytes": request,
        "outcome": "no responders",
    }


def call(method: str, path: str, status: int, response: Any, **more: Any) -> Message:
    direction = more.pop("by", "LocalAI worker -> LocalAI frontend")
    headers = {"Content-Type": "application/json"}
    exchange = {"like": "http", "direction": direction, "method": method, "path": path, "headers": headers}
    return {**exchange, "status": status, "response": response, **more}


def file(method: str, path: str, status: int, told: Any = None, response: Any = None, **headers: str) -> Message:
    exchange = {"like": "http_files", "direction": FRONTEND, "method": method, "path": path, "status": status}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return {**exchange, "headers": named, "response_headers": told or {}, "response": response}


def log(method: str, path: str, **more: Any) -> Message:
    return {"like": "http_logs", "direction": TEST, "method": method, "path": path, "headers": {}, **more}


REGISTRATION = {
    "address": "w:50051",
    "available_disk": 2**62,
    "available_ram": 2**33,
    "available_vram": 0,
    "capability": "default",
    "gpu_compute_capability": "",
    "gpu_vendor": "",
    "http_address": "w:50050",
    "labels": {"node.replica-slots": "1"},
    "max_replicas_per_model": 1,
    "name": "w",
    "token": "tok",
    "total_disk": 2**62,
    "total_ram": 2**34,
    "total_vram": 0,
}
WELCOME = {"created_at": TIME, "id": "n-1", "name": "w", "node_type": "backend", "status": "healthy"}
NODE = {
    "id": "n-1",
    "name": "w",
    "node_type": "backend",
    "address": "w:50051",
    "http_address": "w:50050",
    "status": "healthy",
    "total_vram": 0,
    "available_vram": 0,
    "reserved_vram": 0,
    "total_ram": 1,
    "available_ram": 1,
    "total_disk": 1,
    "available_disk": 0,
    "gpu_vendor": "",
    "gpu_compute_capability": "",
    "capability": "default",
    "max_replicas_per_model": 1,
    "max_replicas_per_model_manually_set": False,
    "vram_budget_manually_set": False,
    "last_heartbeat": TIME,
    "created_at": TIME,
    "updated_at": TIME,
    "model_count": 0,
    "in_flight_count": 0,
    "labels": {"node.name": "w"},
}
ROW = {
    "id": "r",
    "node_id": "n-1",
    "model_name": "m",
    "replica_index": 0,
    "address": "w:50051",
    "state": "unloading",
    "in_flight": 0,
    "last_used": TIME,
    "backend_type": "mock",
    "config_revision": "c",
    "effective_options_hash": "h",
    "cleanup_error": "address mismatch",
    "cleanup_attempts": 4,
    "cleanup_next_retry_at": TIME,
    "created_at": TIME,
    "updated_at": TIME,
}
REFUSED = {"error": {"code": 404, "message": "node not found", "type": "node_error"}}
BACKEND = {
    "name": "mock",
    "is_system": False,
    "is_meta": True,
    "installed_at": "2026-01-02T03:04:05Z",
    "uri": "oci://x",
}
STAGING = {
    "model_id": "m",
    "node_name": "w",
    "file_name": "m.bin",
    "bytes_sent": 2**53 + 1,
    "total_bytes": 2**53 + 3,
    "progress": 99.5,
    "speed": "6.1 MB/s",
    "file_index": 1,
    "total_files": 1,
    "message": "m.bin",
    "started_at": TIME,
}
STATUS = {
    "deletion": False,
    "file_name": "f",
    "processed": False,
    "message": "processing",
    "progress": 0,
    "current_bytes": 3686,
    "total_bytes": 75916902,
    "file_size": "72.4 MiB",
    "downloaded_size": "3.6 KiB",
    "gallery_element_name": "mock",
    "cancelled": False,
    "cancellable": True,
    "nodes": [
        {"node_id": "a", "node_name": "w", "status": "success", "percentage": 0},
        {"node_id": "b", "node_name": "v", "status": "error", "percentage": 0, "error": "no"},
        {"node_id": "c", "node_name": "u", "status": "running_on_worker", "percentage": 12.5, "phase": "downloading"},
    ],
}
STOPPED = {"success": True, "stopped_process_keys": ["m#0", "a#b#1"], "reports_stopped_processes": True}
LINE = {"timestamp": TIME, "stream": "stderr", "text": "<&>"}

COMMANDS = [
    ask("backend.install", {"backend": "mock", "backend_galleries": GALLERIES}, {"success": True, "address": "w:1"}),
    ask("backend.install", {"backend": "mock", "force": True, "op_id": "o"}, {"success": False, "error": "no"}),
    ask("backend.upgrade", {"backend": "mock", "backend_galleries": GALLERIES, "op_id": "o"}, STOPPED),
    ask(
        "backend.upgrade",
        {"backend": "c", "uri": "oci://c", "name": "c", "alias": "d", "replica_index": 2},
        {"success": False, "error": "no", "reports_stopped_processes": True},
    ),
    *[ask("backend.upgrade", data, BAD, by=TEST) for data in ("", "{", "[]", '{"backend":{}}')],
    ask("backend.delete", {"backend": "mock"}, STOPPED),
    ask("backend.delete", "null", {"success": False, "error": "no", "reports_stopped_processes": True}, by=TEST),
    ask("backend.delete", {"BACKEND": "mock", "x": [None]}, {"success": True}, by=TEST),
    *[ask("backend.delete", data, BAD, by=TEST) for data in ("", "5", '{"backend":1}')],
    ask("backend.list", "%%%", {"backends": [BACKEND]}),
    ask("backend.list", "{}", {"backends": None}),
    ask("models.running", "{}", {"models": [{"model_id": "m", "replica_index": -1, "address": "127.0.0.1:1"}]}),
    ask("model.unload", {"model_name": "m"}, {"success": True}),
    ask("model.unload", {"model_name": "m", "address": "127.0.0.1:1"}, {"success": True}),
    ask("model.unload", "[]", BAD, by=TEST),
    ask(
        "model.stop",
        {"model_name": "m", "process_key": "m#0", "expected_address": "127.0.0.1:1", "config_revision": "c"},
        {
            "matched": True,
            "freed": False,
            "terminated": True,
            "process_key": "m#0",
            "address": "127.0.0.1:1",
            "error": "freeing process m#0: no",
        },
    ),
    ask(
        "model.stop",
        {"model_name": "m", "process_key": "m#0", "expected_address": "", "force": True},
        {"matched": False, "freed": False, "terminated": True, "process_key": "m#0"},
    ),
    ask("model.delete", {"model_name": "m"}, {"success": True}),
    ask("model.delete", "{", {"success": False, "error": "invalid request"}, by=TEST),
    ask("files.ensure", {"key": "models/m/x"}, {"local_path": "/cache/models/m/x"}),
    ask("files.ensure", "[]", {"error": "invalid request"}, by=TEST),
    ask("files.temp", "%%", {"local_path": "/cache/staging-tmp/localai-staging-1.tmp"}),
    ask("files.stage", {"local_path": "/cache/x", "key": "ephemeral/fetch//cache/x/output"}, {"key": "ephemeral/x"}),
    ask("files.stage", {"local_path": "/etc/x", "key": "k"}, {"error": "path outside allowed directories"}, by=TEST),
    ask("files.listdir", {"key_prefix": "models/m"}, {"files": ["a", "b/c"]}),
    ask("files.listdir", {"key_prefix": "data/"}, {"files": None}),
    ask("files.listdir", {"key_prefix": "../"}, {"error": "invalid key prefix"}, by=TEST),
    unanswered("files.ensure", '{"key":"models/x"}'),
    unanswered("backend.nothing", "{}"),
]
EVENTS = [
    tell("nodes.n-1.backend.stop", {"backend": "m#0"}),
    tell("nodes.n-1.backend.stop", {"backend": "", "force": True}),
    tell("nodes.n-1.backend.stop", "", by=TEST),
    tell("nodes.n-1.backend.stop", "{bad", by=TEST),
    tell("nodes.n-1.stop", "null", by=TEST),
    *[
        tell(
            "nodes.n-1.backend.install.o-1.progress",
            {
                "op_id": "o-1",
                "node_id": "n-1",
                "backend": "mock",
                "file_name": "Downloading 1/2 x",
                "current": "512 B",
                "total": "72.4 MiB",
                "percentage": percentage,
                "phase": phase,
            },
            by="LocalAI worker -> frontend",
        )
        for percentage, phase in [(0, "resolving"), (0.004865916485232668, "downloading"), (100, "extracting")]
    ],
    tell(
        "nodes.n-1.backend.install.o-1.progress",
        {"op_id": "o-1", "node_id": "n-1", "backend": "mock", "percentage": 50, "phase": "starting"},
        by="LocalAI worker -> frontend",
    ),
    tell("staging.m.progress", {"model_id": "m", "status": STAGING, "done": False}),
    tell("staging.m.progress", {"model_id": "m", "done": True}),
    tell("gallery.o-1.progress", {"job_id": "o-1", "status": STATUS}),
    tell("gallery.o-1.progress", {"job_id": "o-1", "status": None}),
    tell("gallery.o-1.cancel", {"id": "o-1"}),
    tell("gallery.o-1.cancel", {"id": "o-1", "pause": True}),
    tell("gallery.opcache.start", {"job_id": "o-1", "cache_key": "g@mock", "is_backend": True}),
    tell("gallery.opcache.end", {"job_id": "o-1", "cache_key": "", "is_backend": False}),
    tell("cache.invalidate.models", {"element": "m", "op": "delete", "config_revision": "c"}),
    tell("cache.invalidate.backends", {"element": "mock", "op": "upgrade"}),
    tell("prefixcache.observe", {"model": "m", "chain": [2**64 - 1, 2**53 + 1, 0], "node_id": "n-1", "replica": 0}),
    tell("prefixcache.invalidate", {"model": "m", "node_id": "n-1", "replica": -1}),
]
STARTED = {"jobID": "j-1", "message": "External backend installation started"}
FOLLOWED = {"jobID": "j-1", "message": "backend installation started", "statusUrl": "/api/backends/job/j-1"}
JOB = {
    "deletion": False,
    "galleryElementName": "",
    "message": "processing backend: mock",
    "processed": False,
    "progress": 12.5,
    "queued": False,
}
INSTALLED = {
    "Name": "mock",
    "RunFile": "",
    "IsMeta": False,
    "IsSystem": False,
    "Metadata": {"name": "mock", "installed_at": "2026-01-02T03:04:05Z", "uri": "oci://x"},
    "nodes": [{"node_id": "n-1", "node_name": "w", "node_status": "unhealthy", "digest": "sha256:1"}],
}
OPERATION = {
    "cancellable": False,
    "fullName": "g@mock",
    "id": "g@mock",
    "isBackend": True,
    "isDeletion": True,
    "isQueued": False,
    "jobID": "j-1",
    "message": "processing backend: mock",
    "name": "mock",
    "progress": 0,
    "taskType": "deletion",
}
MOVING = {
    "nodeID": "n-1",
    "phase": "queued",
    "currentBytes": 1,
    "totalBytes": 2,
    "error": "w: no",
    "nodes": [{"node_id": "n-1", "node_name": "w", "status": "error", "percentage": 0, "error": "no"}],
}
REVISION = {"config_revision": "ab" * 32, "pending_cleanup": 2}
ENDED = {
    "id": "node:n-1:mock",
    "name": "mock",
    "jobID": "j-1",
    "isBackend": True,
    "nodeID": "n-1",
    "taskType": "installation",
    "outcome": "failed",
    "error": "w: no",
    "startedAt": TIME,
    "finishedAt": TIME,
}
CALLS = [
    call("POST", "/api/node/register", 201, WELCOME, request=REGISTRATION),
    call("POST", "/api/node/register", 201, {**WELCOME, "api_token": "t"}, request={"name": "a", "node_type": "agent"}),
    call(
        "POST",
        "/api/node/register",
        400,
        {"error": {"code": 400, "message": "invalid request body", "type": "node_error"}},
        request={"total_vram": -1},
    ),
    call("POST", "/api/node/register", 401, {"error": "invalid registration token"}, request={"name": "w"}),
    call("POST", "/api/node/n-1/heartbeat", 200, {"message": "heartbeat received"}, request={"available_disk": 0}),
    call("POST", "/api/node/n-1/heartbeat", 404, REFUSED, request={}),
    call("POST", "/api/node/n-1/heartbeat", 200, {"message": "x"}, request={"total_disk": "x"}, note="wrong type"),
    call("POST", "/api/node/n-1/drain", 200, {"message": "node set to draining"}),
    call("DELETE", "/api/node/n-1", 200, {"message": "node set to offline"}),
    call("GET", "/api/node/n-1/models", 200, [ROW]),
    call("GET", "/api/node/n-1/models", 200, [{"in_flight": 2}], by="LocalAI worker -> test frontend"),
    call("GET", "/api/nodes/models", 200, [ROW]),
    call("GET", "/api/nodes/n-1/models", 200, []),
    call("POST", "/api/nodes/n-1/models/unload", 200, {"message": "model unloaded"}),
    call("POST", "/backend/shutdown", 200, {"message": "model stopped"}),
    call(
        "POST",
        "/api/nodes/n-1/approve",
        200,
        {"id": "n-1", "message": "node approved", "name": "w", "node_type": "backend", "status": "healthy"},
    ),
    call("GET", "/api/nodes", 200, [NODE]),
    call("GET", "/api/nodes/n-1", 200, NODE),
    call("GET", "/api/nodes/n-1/backends", 200, [BACKEND]),
    call("POST", "/api/nodes/n-1/backends/install", 202, FOLLOWED, request={"backend": "mock"}, by=ADMIN),
    call("POST", "/api/backends/upgrade/mock", 200, {**FOLLOWED, "uuid": "j-1"}),
    call("POST", "/api/backends/install-external", 200, STARTED, request={"uri": "oci://r/x:1"}, by=ADMIN),
    call("GET", "/api/backends/job/j-1", 200, JOB),
    call("GET", "/api/backends/job/j-2", 200, {**JOB, "error": "w: no", "message": "error: w: no", "processed": True}),
    call("GET", "/api/backends/job/j-3", 200, {**JOB, "completed": True, "progress": 100, "processed": True}),
    call("GET", "/backends", 200, [INSTALLED]),
    call("GET", "/api/operations", 200, {"operations": [OPERATION, {**OPERATION, **MOVING}]}),
    call("GET", "/api/operations/history", 200, {"operations": [ENDED]}),
    call("PATCH", "/api/models/config-json/m", 200, {"success": True, "message": "done", **REVISION}),
    call("POST", "/models/reload", 200, {"success": True, "message": "read", "pending_cleanup": 0}),
    call("POST", "/models/delete/m", 200, {"uuid": "op-1", "status": "http://f:8080/models/jobs/op-1"}),
    call("POST", "/api/operations/j-1/cancel", 200, {"success": True, "message": "Operation cancelled"}),
]
HEAD = {"Accept-Ranges": "bytes", "Content-Length": "5", "X-File-Size": "5", "X-Local-Path": "/models/m/x"}
RANGED = {"Content_Type": "application/octet-stream", "X_Content_Sha256": HASH, "Content_Range": "bytes 2-4/9"}
FILES = [
    file("HEAD", "/v1/files/models/m/x", 404),
    file("HEAD", "/v1/files/models/m/x", 200, {**HEAD, "X-Content-Sha256": HASH}),
    file("HEAD", "/v1/files/models/m/x", 200, {**HEAD, "X-Target-Sha256": HASH}),
    file("PUT", "/v1/files/models/m/x", 200, response={"local_path": "/models/m/x"}, **RANGED),
    file("PUT", "/v1/files/models/m/x", 308, {"Range": "bytes=0-4", "X-File-Size": "5"}, **RANGED),
    file("PUT", "/v1/files/models/m/x", 416, {"Content-Range": "bytes */9", "X-File-Size": "0"}, **RANGED),
    *[
        file("PUT", "/v1/files/x", 400, response="invalid Content-Range: x", Content_Range=text)
        for text in (
            "bytes 0-9",
            "bytes 0-9/*",
            "bytes */10",
            "items 0-9/10",
            "bytes 9-0/10",
            "bytes 0-10/10",
            "0-9/10",
        )
    ],
    file("POST", "/v1/files/temp", 200, response={"local_path": "/staging/localai-output-1.tmp"}),
    file("GET", "/v1/files-list/models/m", 200, response={"files": ["x", "y/z"]}),
    file("GET", "/v1/files-list/models/m", 200, response={"files": None}),
    log("GET", "/v1/backend-logs", status=200, response='["m"]'),
    log("WS", "/v1/backend-logs/m/ws", first_frame={"type": "initial", "lines": [LINE]}),
    log("WS", "/v1/backend-logs/m/ws", frame={"line": LINE, "type": "line"}),
]

if __name__ == "__main__":
    messages = [*COMMANDS, *EVENTS, *CALLS, *FILES]
    text = "[\n  " + ",\n  ".join(json.dumps(entry) for entry in messages) + "\n]"
    Path(__file__).with_name("messages.json").write_text(f'{{"messages": {text}}}\n', encoding="utf-8")
