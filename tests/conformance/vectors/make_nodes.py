"""Writes nodes.json: our own vectors of LocalAI's node routes, from the facts of its protocol.

Run `python tests/conformance/vectors/make_nodes.py` after a change; the test plays the committed file.
"""

import json
from pathlib import Path
from typing import Any

TOKEN = {"Authorization": "Bearer tok", "Content-Type": "application/json"}
ADMIN = {"Authorization": "Bearer adminkey", "Content-Type": "application/json"}
W, AGENT, PEND, NONE = (f"{digit * 8}-0000-4000-8000-{digit * 12}" for digit in "abcd")
TIME = "2026-01-02T03:04:05.678901234Z"
WORKER = {
    "address": "10.1.2.3:50051",
    "available_disk": 50,
    "available_ram": 20,
    "available_vram": 0,
    "capability": "default",
    "gpu_compute_capability": "",
    "gpu_vendor": "",
    "http_address": "10.1.2.3:50050",
    "labels": {"node.replica-slots": "2", "rack": "r1"},
    "max_replicas_per_model": 2,
    "name": "vector-worker",
    "token": "tok",
    "total_disk": 100,
    "total_ram": 40,
    "total_vram": 0,
}


def node_error(status: int, message: str) -> dict[str, Any]:
    return {"error": {"code": status, "message": message, "type": "node_error"}}


def welcome(id: str, name: str, kind: str = "backend", status: str = "healthy", **more: str) -> dict[str, str]:
    return {"created_at": TIME, "id": id, "name": name, "node_type": kind, "status": status, **more}


def message(
    method: str, path: str, headers: dict[str, str], request: Any, status: int, response: Any, note: str
) -> Any:
    asked = {} if request is None else {"request": request}
    challenge = {"WWW-Authenticate": "Bearer"} if isinstance(response, dict) and _wants_key(response) else {}
    return {
        "direction": "client -> LocalAI frontend",
        "method": method,
        "path": path,
        "headers": headers,
        **asked,
        "status": status,
        "response_headers": challenge,
        "response": response,
        "note": note,
    }


def _wants_key(response: dict[str, Any]) -> bool:
    error = response.get("error")
    return isinstance(error, dict) and error.get("message") == "An authentication key is required"


def register(request: Any, status: int, response: Any, note: str, headers: dict[str, str] = TOKEN) -> Any:
    return message("POST", "/api/node/register", headers, request, status, response, note)


def refused(change: dict[str, Any], status: int, text: str, note: str) -> Any:
    return register({**WORKER, **change}, status, node_error(status, text), note)


def own(method: str, act: str, status: int, response: Any, note: str, *, id: str = W, request: Any = None) -> Any:
    return message(method, f"/api/node/{id}{act}", TOKEN, request, status, response, note)


def admin(method: str, act: str, status: int, response: Any, note: str, *, id: str = W, request: Any = None) -> Any:
    return message(method, f"/api/nodes/{id}{act}", ADMIN, request, status, response, note)


BEAT = {"message": "heartbeat received"}
KEY_REQUIRED = {"error": {"code": 401, "message": "An authentication key is required", "type": "invalid_request_error"}}
VIEW = {
    "id": W,
    "name": "vector-worker",
    "node_type": "backend",
    "address": "10.1.2.3:50051",
    "http_address": "10.1.2.3:50050",
    "status": "healthy",
    "total_vram": 0,
    "available_vram": 0,
    "reserved_vram": 0,
    "total_ram": 40,
    "available_ram": 20,
    "total_disk": 100,
    "available_disk": 50,
    "gpu_vendor": "",
    "gpu_compute_capability": "",
    "capability": "default",
    "max_replicas_per_model": 2,
    "max_replicas_per_model_manually_set": False,
    "vram_budget_manually_set": False,
    "last_heartbeat": TIME,
    "created_at": TIME,
    "updated_at": TIME,
    "model_count": 0,
    "in_flight_count": 0,
    "labels": {"node.name": "vector-worker", "node.replica-slots": "2", "rack": "r1"},
}

MESSAGES = [
    register(WORKER, 201, welcome(W, "vector-worker"), "first registration"),
    register(WORKER, 201, welcome(W, "vector-worker"), "the same name again"),
    register(
        {"NAME": "earlier", "Extra": [1], **WORKER}, 201, welcome(W, "vector-worker"), "other case, unknown field"
    ),
    register({**WORKER, "name": "odd-budget", "vram_budget": "200%"}, 201, welcome("e1", "odd-budget"), "odd budget"),
    register({**WORKER, "name": "nulls", "labels": None}, 201, welcome("e2", "nulls"), "null field"),
    register(
        {"name": "vector-agent", "node_type": "agent", "token": "tok"},
        201,
        welcome(AGENT, "vector-agent", "agent", api_token="lai-1"),
        "agent node",
    ),
    register(
        WORKER,
        401,
        {"error": "missing or invalid Authorization header"},
        "no header",
        {"Content-Type": "application/json"},
    ),
    register(
        WORKER, 401, {"error": "invalid registration token"}, "wrong bearer", {**TOKEN, "Authorization": "Bearer no"}
    ),
    refused({"token": ""}, 401, "registration token required", "no token in the body"),
    refused({"token": "no"}, 401, "invalid registration token", "wrong token in the body"),
    refused({"name": ""}, 400, "name is required", "no name"),
    refused({"address": ""}, 400, "address is required for backend workers", "no address"),
    refused({"node_type": "tpu"}, 400, 'invalid node_type "tpu"; must be "backend" or "agent"', "unknown type"),
    refused({"name": "n" * 256}, 400, "name exceeds 255 characters", "long name"),
    refused({"address": "n" * 513}, 400, "address exceeds 512 characters", "long address"),
    refused({"http_address": "n" * 513}, 400, "http_address exceeds 512 characters", "long http address"),
    refused({"total_ram": -1}, 400, "invalid request body", "negative"),
    refused({"total_ram": "x"}, 400, "invalid request body", "text for a number"),
    refused({"total_ram": 1.5}, 400, "invalid request body", "fraction for a whole number"),
    register("{", 400, node_error(400, "invalid request body"), "truncated JSON"),
    register("[]", 400, node_error(400, "invalid request body"), "not an object"),
    register(
        WORKER,
        400,
        node_error(400, "invalid request body"),
        "wrong content type",
        {**TOKEN, "Content-Type": "text/plain"},
    ),
    own(
        "POST",
        "/heartbeat",
        200,
        BEAT,
        "worker without GPU",
        request={"available_ram": 19, "available_disk": 49, "total_disk": 100},
    ),
    own("POST", "/heartbeat", 200, BEAT, "no body"),
    own("POST", "/heartbeat", 200, BEAT, "wrong type", request={"available_ram": "x"}),
    own("POST", "/heartbeat", 200, BEAT, "not JSON", request="{{"),
    own("POST", "/heartbeat", 404, node_error(404, "node not found"), "unknown", id=NONE, request={}),
    own("GET", "/models", 200, [], "no replicas"),
    own("GET", "/models", 200, [], "unknown", id=NONE),
    own("POST", "/drain", 200, {"message": "node set to draining"}, "drain"),
    own("POST", "/resume", 200, {"message": "node resumed"}, "resume"),
    own("POST", "/drain", 500, node_error(500, "failed to drain node"), "unknown", id=NONE),
    own("POST", "/resume", 500, node_error(500, "failed to resume node"), "unknown", id=NONE),
    own("POST", "/deregister", 500, node_error(500, "failed to deactivate node"), "unknown", id=NONE),
    own("POST", "/deregister", 200, {"message": "node set to offline"}, "deregister"),
    own("DELETE", "", 200, {"message": "node set to offline"}, "DELETE form"),
    register(WORKER, 201, welcome(W, "vector-worker"), "back again"),
    admin("GET", "", 200, VIEW, "one node"),
    admin("GET", "", 404, node_error(404, "node not found"), "unknown", id=NONE),
    admin("GET", "/models", 200, [], "no replicas"),
    admin("POST", "/drain", 200, {"message": "node set to draining"}, "drain"),
    admin("POST", "/resume", 200, {"message": "node resumed"}, "resume"),
    admin("POST", "/drain", 500, node_error(500, "failed to drain node"), "unknown", id=NONE),
    admin("POST", "/resume", 500, node_error(500, "failed to resume node"), "unknown", id=NONE),
    admin("POST", "/approve", 400, node_error(400, "failed to approve node"), "not pending"),
    admin("POST", "/approve", 400, node_error(400, "failed to approve node"), "unknown", id=NONE),
    admin("PUT", "/labels", 200, {"a": "b"}, "replace labels", request={"a": "b"}),
    admin("PATCH", "/labels", 200, {"a": "b", "c": "d"}, "merge labels", request={"c": "d"}),
    admin("DELETE", "/labels/a", 204, "", "remove a label"),
    admin("DELETE", "/labels/a", 204, "", "remove a label that is not there"),
    admin("DELETE", "/labels/a", 204, "", "remove a label of an unknown node", id=NONE),
    admin("GET", "/labels", 200, {"c": "d"}, "labels"),
    admin("PUT", "/max-replicas-per-model", 200, {"max_replicas_per_model": 3}, "limit", request={"value": 3}),
    admin(
        "PUT", "/max-replicas-per-model", 400, node_error(400, "value must be >= 1"), "limit 0", request={"value": 0}
    ),
    admin("DELETE", "/max-replicas-per-model", 200, {"reset": True}, "no limit"),
    admin("PUT", "/vram-budget", 200, {"vram_budget": "12GB"}, "budget", request={"value": "12GB"}),
    admin(
        "PUT", "/vram-budget", 400, node_error(400, "invalid vram budget: "), "bad budget", request={"value": "101%"}
    ),
    admin("DELETE", "/vram-budget", 200, {"reset": True}, "no budget"),
    message("GET", "/api/nodes", {}, None, 401, KEY_REQUIRED, "no key"),
    message(
        "GET", "/api/nodes", TOKEN, None, 401, KEY_REQUIRED, "the registration token is not an administrator's key"
    ),
    register(
        {"name": "vector-pend", "address": "a:1", "token": "tok"},
        201,
        welcome(PEND, "vector-pend", status="pending"),
        "pending",
    ),
    register(
        {"name": "vector-pend", "address": "a:1", "token": "tok"},
        201,
        welcome(PEND, "vector-pend", status="pending"),
        "pending",
    ),
    admin(
        "POST",
        "/approve",
        200,
        {"id": PEND, "message": "node approved", "name": "vector-pend", "node_type": "backend", "status": "healthy"},
        "approve",
        id=PEND,
    ),
    admin("DELETE", "", 200, {"message": "node deregistered"}, "remove", id=PEND),
    admin("DELETE", "", 500, node_error(500, "failed to deregister node"), "unknown", id=PEND),
]

if __name__ == "__main__":
    target = Path(__file__).with_name("nodes.json")
    target.write_text(json.dumps({"messages": MESSAGES}, indent=1) + "\n", encoding="utf-8")
