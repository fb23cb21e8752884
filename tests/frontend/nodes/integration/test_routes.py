"""Node lists, labels, budgets, heartbeats and the record of events through the API."""

import gzip
from datetime import timedelta
from typing import Any

import pytest

from corral.gateway.inference import ROUTES as MODEL_ROUTES
from tests.kit.clock import ManualClock
from tests.kit.frontend import REGISTRATION_TOKEN, TRUSTED_TOKEN, Frontend


async def joined(frontend: Frontend, name: str, **body: object) -> str:
    answer = await frontend.register({"name": name, "address": "10.0.0.1:50051", **body}, token=TRUSTED_TOKEN)
    document: Any = answer.json()
    assert answer.status == 201, document
    return str(document["id"])


async def get(frontend: Frontend, url: str) -> Any:
    return (await frontend.call("GET", url)).json()


async def beat(frontend: Frontend, node_id: str, body: object = None) -> None:
    answer = await frontend.call("POST", f"/api/node/{node_id}/heartbeat", body, key=REGISTRATION_TOKEN)
    assert (answer.status, answer.json()) == (200, {"message": "heartbeat received"})


async def status(frontend: Frontend, node_id: str) -> str:
    return str((await get(frontend, f"/api/nodes/{node_id}"))["status"])


async def test_the_plain_list_is_an_array_in_the_order_of_names(frontend: Frontend) -> None:
    for name in ("b", "a", "c"):
        await joined(frontend, name)
    assert [node["name"] for node in await get(frontend, "/api/nodes")] == ["a", "b", "c"]


async def test_lists_can_be_filtered_and_read_page_by_page(frontend: Frontend) -> None:
    for number in range(7):
        await joined(frontend, f"n{number}", labels={"tier": "gpu" if number % 2 else "cpu"})
    names: list[str] = []
    cursor = ""
    while True:
        page = await get(frontend, f"/api/v1/nodes?limit=2&label=tier=cpu{cursor}")
        names += [node["name"] for node in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert names == ["n0", "n2", "n4", "n6"]
    assert [node["name"] for node in await get(frontend, "/api/nodes?name=N3&status=healthy&type=backend")] == ["n3"]
    assert await get(frontend, "/api/nodes?status=offline") == []


async def test_the_compatible_list_names_its_next_page_in_a_header(frontend: Frontend) -> None:
    for name in ("a", "b", "c"):
        await joined(frontend, name)
    first = await frontend.call("GET", "/api/nodes?limit=2")
    document: Any = first.json()
    assert [node["name"] for node in document] == ["a", "b"]
    second = await frontend.call("GET", f"/api/nodes?limit=2&cursor={first.headers['x-next-cursor']}")
    document = second.json()
    assert [node["name"] for node in document] == ["c"]
    assert "x-next-cursor" not in second.headers


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("status=dead", "status"),
        ("type=gpu", "type"),
        ("label=x", "label"),
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("limit=5000", "limit"),
        ("limit=%C2%B2", "limit"),
        ("cursor=zzz", "cursor"),
        ("cursor=WzEsMl0", "cursor"),
    ],
)
async def test_a_filter_that_makes_no_sense_is_refused_and_named(frontend: Frontend, query: str, field: str) -> None:
    answer = await frontend.call("GET", f"/api/v1/nodes?{query}")
    document: Any = answer.json()
    assert (answer.status, document["error"]["field"]) == (400, field)
    assert (await frontend.call("GET", f"/api/nodes?{query}")).status == 400


async def test_silence_turns_a_node_unhealthy_then_offline_and_a_heartbeat_brings_it_back(
    frontend: Frontend, clock: ManualClock
) -> None:
    node_id = await joined(frontend, "w")
    seen = []
    for _ in range(61):
        await clock.advance(timedelta(seconds=1))
        await frontend.settle()
        if not seen or seen[-1] != await status(frontend, node_id):
            seen.append(await status(frontend, node_id))
    await beat(frontend, node_id)
    await frontend.settle()
    seen.append(await status(frontend, node_id))

    assert seen == ["healthy", "unhealthy", "offline", "healthy"]
    changes = [event for event in await get(frontend, "/api/v1/events?after=0") if event["kind"] == "node.status"]
    assert [change["data"]["after"] for change in changes] == seen
    assert changes[1]["data"]["why"] == "silent for 30 s"


async def test_bad_fields_of_a_heartbeat_are_ignored_and_shown(frontend: Frontend) -> None:
    node_id = await joined(frontend, "w", total_ram=100, available_ram=50)
    await beat(frontend, node_id, {"available_ram": "x", "available_disk": -1, "total_vram": True, "gpu_vendor": 7})
    node = await get(frontend, f"/api/v1/nodes/{node_id}")
    assert (node["available_ram"], node["total_ram"], node["available_disk"]) == (50, 100, 0)
    assert [problem.partition(":")[0] for problem in node["problems"]] == [
        "total_vram",
        "available_disk",
        "available_ram",
        "gpu_vendor",
    ] or len(node["problems"]) == 4

    await beat(frontend, node_id, {"AVAILABLE_RAM": 40, "available_disk": 0})
    node = await get(frontend, f"/api/v1/nodes/{node_id}")
    assert (node["available_ram"], node["problems"]) == (40, [])


async def test_a_heartbeat_that_is_not_json_is_still_a_sign_of_life(frontend: Frontend, clock: ManualClock) -> None:
    node_id = await joined(frontend, "w")
    await clock.advance(timedelta(seconds=29))
    await beat(frontend, node_id, b"\xff{")
    await clock.advance(timedelta(seconds=29))
    await frontend.control.context.nodes.hearing.tick()
    assert await status(frontend, node_id) == "healthy"
    assert "not valid JSON" in (await get(frontend, f"/api/v1/nodes/{node_id}"))["problems"][0]


async def test_bodies_over_the_limit_are_refused(frontend: Frontend) -> None:
    node_id = await joined(frontend, "w")
    huge = b'{"x":"' + b"y" * 1_100_000 + b'"}'
    for method, url, key, is_set in (
        ("POST", "/api/node/register", REGISTRATION_TOKEN, False),
        ("POST", f"/api/node/{node_id}/heartbeat", REGISTRATION_TOKEN, False),
        ("PUT", f"/api/nodes/{node_id}/labels", None, True),
        ("POST", "/api/v1/keys", None, True),
    ):
        answer = await frontend.call(method, url, huge, key=key)
        assert (answer.status, b"the setting frontend.max_body" in answer.body) == (413, is_set)


async def test_a_byte_order_mark_before_a_body_is_left_out(frontend: Frontend) -> None:
    answer = await frontend.call("POST", "/api/v1/keys", b'\xef\xbb\xbf{"name": "app", "scopes": ["inference"]}')
    assert answer.status == 201


@pytest.mark.parametrize("encoding", ["gzip", "br", "gzip, br"])
async def test_an_encoded_body_is_refused_by_the_name_of_its_header(frontend: Frontend, encoding: str) -> None:
    """The gateway inflates bodies for models only; it passes on all others as they are."""
    sent = gzip.compress(b'{"name": "app", "scopes": ["inference"]}')
    answer = await frontend.call("POST", "/api/v1/keys", sent, content_encoding=encoding)
    error = answer.json()["error"]
    assert (answer.status, error["code"]) == (415, "unsupported_content_encoding")
    assert f"the Content-Encoding {encoding} is not taken here" in error["message"]
    answer = await frontend.call("POST", "/api/node/register", sent, key=REGISTRATION_TOKEN, content_encoding=encoding)
    assert (answer.status, answer.json()["error"]["code"]) == (415, 415)
    plain = {"name": "app", "scopes": ["inference"]}
    assert (await frontend.call("POST", "/api/v1/keys", plain, content_encoding="identity")).status == 201


async def test_labels_budgets_and_limits_of_people_survive_a_re_registration(frontend: Frontend) -> None:
    node_id = await joined(frontend, "w", labels={"site": "lab"}, max_replicas_per_model=2, vram_budget="50%")
    await frontend.call("PATCH", f"/api/nodes/{node_id}/labels", {"rack": "7"})
    await frontend.call("DELETE", f"/api/nodes/{node_id}/labels/site")
    await frontend.call("PUT", f"/api/nodes/{node_id}/max-replicas-per-model", {"value": 9})
    await frontend.call("PUT", f"/api/nodes/{node_id}/vram-budget", {"value": "1GiB"})
    await frontend.call("POST", f"/api/nodes/{node_id}/drain")

    assert await joined(frontend, "w", labels={"site": "lab"}, max_replicas_per_model=2) == node_id

    node = await get(frontend, f"/api/nodes/{node_id}")
    assert node["labels"] == {"node.name": "w", "node.replica-slots": "9", "rack": "7"}
    assert (node["max_replicas_per_model"], node["max_replicas_per_model_manually_set"]) == (9, True)
    assert (node["vram_budget"], node["vram_budget_manually_set"]) == ("1GiB", True)
    assert node["status"] == "draining"


@pytest.mark.parametrize("body", [[], "x", {"a": 1}, {"a": None}, {"": "x"}, {"k" * 200: "v"}, {"k": "v" * 300}])
async def test_labels_that_cannot_be_stored_are_refused(frontend: Frontend, body: object) -> None:
    node_id = await joined(frontend, "w")
    for prefix in ("/api", "/api/v1"):
        for method in ("PUT", "PATCH"):
            assert (await frontend.call(method, f"{prefix}/nodes/{node_id}/labels", body)).status == 400


@pytest.mark.parametrize("body", [b"", b"{", {"value": "two"}, {"value": 1.5}, {}, {"value": 2**63}])
async def test_a_limit_that_is_none_is_refused(frontend: Frontend, body: object) -> None:
    node_id = await joined(frontend, "w")
    answer = await frontend.call("PUT", f"/api/nodes/{node_id}/max-replicas-per-model", body)
    assert answer.status == 400


async def test_the_native_routes_use_the_right_codes(frontend: Frontend) -> None:
    node_id = await joined(frontend, "w")
    for method, act in (("POST", "/approve"), ("POST", "/drain"), ("POST", "/resume"), ("DELETE", "")):
        answer = await frontend.call(method, f"/api/v1/nodes/nobody{act}")
        document: Any = answer.json()
        assert (answer.status, document["error"]["code"]) == (404, "not_found")
    assert (await frontend.call("POST", f"/api/v1/nodes/{node_id}/approve")).status == 409
    assert (await frontend.call("DELETE", f"/api/v1/nodes/{node_id}")).status == 204


async def test_every_administrative_act_is_on_the_record_with_its_actor(frontend: Frontend) -> None:
    node_id = await joined(frontend, "w")
    await frontend.call("PATCH", f"/api/nodes/{node_id}/labels", {"a": "b"})
    await frontend.call("POST", f"/api/nodes/{node_id}/drain")
    await frontend.call("POST", f"/api/nodes/{node_id}/drain")
    await frontend.call("POST", f"/api/nodes/{node_id}/resume")
    await frontend.call("DELETE", f"/api/nodes/{node_id}")

    record = [(event["kind"], event["actor"]) for event in await get(frontend, "/api/v1/events?after=0")]

    assert record[-5:] == [
        ("node.registered", "worker"),
        ("node.labels", "admin"),
        ("node.draining", "admin"),
        ("node.resumed", "admin"),
        ("node.removed", "admin"),
    ]


async def test_the_newest_events_come_without_a_place_to_start(frontend: Frontend) -> None:
    for number in range(5):
        await joined(frontend, f"w{number}")
    newest = await get(frontend, "/api/v1/events?limit=2")
    assert [event["data"]["name"] for event in newest] == ["w3", "w4"]
    assert (await frontend.call("GET", "/api/v1/events?after=x")).status == 400


async def test_the_doctor_finds_nothing_wrong_with_a_sound_frontend(frontend: Frontend) -> None:
    await joined(frontend, "w")
    report = await get(frontend, "/api/v1/doctor")
    assert {finding["check"]: finding["level"] for finding in report["findings"]} == {
        "database": "ok",
        "nats": "ok",
        "nats users": "warning",  # this frontend has no seed to make users with
        "disk": "ok",
        "clock": "ok",
        "keys": "ok",
        "secrets key": "ok",
        "nodes": "ok",
        "strangers": "ok",
        "confinement": "ok",
        "addresses": "ok",
        "fleet tls": "ok",
        "gateways": "ok",
        "web page": "ok",
        "models": "ok",
        "scaling": "ok",
        "model galleries": "ok",
        "engines": "ok",
        "operations": "ok",
        "fleet rules": "ok",
    }


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v1/images/generations", 404, "unknown_route"),
        ("POST", "/v1/moderations", 404, "unknown_route"),
        ("GET", "/v1/files", 404, "unknown_route"),
        ("POST", "/v1/models/capabilities", 405, "method_not_allowed"),
    ],
)
async def test_openais_clients_read_in_their_form_that_there_is_no_such_route(
    frontend: Frontend, method: str, path: str, status: int, code: str
) -> None:
    missing = await frontend.call(method, path)
    error = missing.json()["error"]
    assert (missing.status, error["code"], error["type"], error["param"]) == (
        status,
        code,
        "invalid_request_error",
        None,
    )
    assert f"{method} {path}" in error["message"]


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v1/v1/messages", "the client's base URL has /v1 already"),
        ("/v1/api/chat", "the base URL of Ollama's clients is without /v1"),
        ("/ollama/api/version", "without /ollama"),
        ("/openai/deployments/m", "/openai/deployments/NAME/chat/completions"),
        ("/v1/audio/translations", "/v1/audio/transcriptions writes down"),
        ("/v1/responses/resp_1", "send the whole conversation to POST /v1/responses"),
        ("/v1/files", "nothing that clients send is kept"),
        ("/v1/unheard", "/docs lists all"),
    ],
)
async def test_clients_that_ask_in_the_wrong_place_are_told_where_to_go(
    frontend: Frontend, path: str, hint: str
) -> None:
    for method in ("GET", "POST"):
        missing = await frontend.call(method, path)
        message = missing.json()["error"]["message"]
        assert (missing.status, message.startswith(f"no such route: {method} {path}; ")) == (404, True)
        assert hint in message


async def test_openais_clients_read_in_their_form_what_a_key_lacks(frontend: Frontend) -> None:
    path = "/v1/models/capabilities"
    nobody = await frontend.call("GET", path, key="")
    assert (nobody.status, nobody.headers["www-authenticate"]) == (401, "Bearer")
    error = nobody.json()["error"]
    assert (error["code"], error["type"], error["param"]) == ("missing_api_key", "authentication_error", None)
    gateway = await frontend.call("POST", "/api/v1/keys", {"name": "gateway", "scopes": ["gateway"]})
    refused = await frontend.call("GET", path, key=gateway.json()["key"])
    error = refused.json()["error"]
    assert (refused.status, error["code"], error["type"], error["param"]) == (
        403,
        "missing_scope",
        "permission_error",
        None,
    )
    localai = await frontend.call("GET", "/api/models/capabilities", key=gateway.json()["key"])
    assert localai.json()["error"]["code"] == 403


async def test_the_api_describes_itself(frontend: Frontend) -> None:
    api = await get(frontend, "/openapi.json")
    assert "/api/nodes/{id}/labels/{key}" in api["paths"]
    page = await frontend.call("GET", "/docs", key="")
    assert page.status == 200
    assert [route for route in MODEL_ROUTES if b"/v1/" in route and b"<code>%b</code>" % route not in page.body] == []
    missing = await frontend.call("POST", "/v1/responses")
    assert (missing.status, b"no such route: POST /v1/responses; /docs lists all" in missing.body) == (404, True)
    assert (await frontend.call("GET", "/", key="")).status == 200
    assert (await frontend.call("GET", "/readyz", key="")).body == b"ok"
