"""A node with a secret of its own listens to that secret only."""

from typing import Any

from corral.frontend.store.secrets import discard
from tests.kit.frontend import REGISTRATION_TOKEN, Frontend

SECRET = "k" * 43
HELLO = {"version": "1", "features": ["node-secret", "heartbeat-status"], "secret": SECRET, "incarnation": "one"}
WORKER = {"name": "w", "address": "10.0.0.1:50051"}


async def joined(frontend: Frontend, **hello: object) -> str:
    document: Any = (await frontend.register({**WORKER, "corral": {**HELLO, **hello}})).json()
    assert document["corral"]["features"]
    return str(document["id"])


async def test_the_same_secret_is_the_same_node_even_under_another_name(frontend: Frontend) -> None:
    node_id = await joined(frontend)
    renamed: Any = (await frontend.register({"name": "renamed", "address": "10.0.0.2:1", "corral": HELLO})).json()
    assert renamed["id"] == node_id
    seen: Any = (await frontend.call("GET", f"/api/v1/nodes/{node_id}")).json()
    assert (seen["name"], seen["has_secret"], seen["corral"]["version"]) == ("renamed", True, "1")


async def test_two_nodes_may_have_one_name(frontend: Frontend) -> None:
    assert await joined(frontend) != await joined(frontend, secret="o" * 43)


async def test_the_shared_token_cannot_speak_for_a_node_with_a_secret(frontend: Frontend) -> None:
    node_id = await joined(frontend)
    for act in ("heartbeat", "drain", "resume", "deregister"):
        answer = await frontend.call("POST", f"/api/node/{node_id}/{act}", key=REGISTRATION_TOKEN)
        assert (answer.status, answer.json()) == (401, {"error": "invalid registration token"})
    answer = await frontend.call("GET", f"/api/node/{node_id}/models", key=REGISTRATION_TOKEN)
    assert answer.status == 401


async def test_one_node_s_secret_cannot_speak_for_another(frontend: Frontend) -> None:
    await joined(frontend)
    other = await joined(frontend, secret="o" * 43)
    answer = await frontend.call("POST", f"/api/node/{other}/deregister", key=SECRET)
    assert answer.status == 401


async def test_heartbeat_answers_tell_a_corral_worker_its_status(frontend: Frontend) -> None:
    node_id = await joined(frontend)
    beat = await frontend.call("POST", f"/api/node/{node_id}/heartbeat", {}, key=SECRET)
    assert beat.json() == {"message": "heartbeat received", "corral": {"status": "pending"}}

    await frontend.call("POST", f"/api/nodes/{node_id}/approve")
    await frontend.call("POST", f"/api/node/{node_id}/deregister", key=SECRET)
    beat = await frontend.call("POST", f"/api/node/{node_id}/heartbeat", {}, key=SECRET)
    assert beat.json() == {"message": "heartbeat received", "corral": {"status": "offline", "deregistered": True}}


async def test_an_unknown_node_is_unknown_only_to_those_with_a_token(frontend: Frontend) -> None:
    for key, status in ((REGISTRATION_TOKEN, 404), (SECRET, 401)):
        assert (await frontend.call("POST", "/api/node/nobody/heartbeat", {}, key=key)).status == status


async def test_a_known_node_may_come_back_with_its_secret_alone(frontend: Frontend) -> None:
    """The shared token may have been changed since: those who were admitted stay admitted."""
    node_id = await joined(frontend)
    body = {**WORKER, "token": SECRET, "corral": HELLO}
    again = await frontend.call("POST", "/api/node/register", body, key=SECRET)
    document: Any = again.json()
    assert (again.status, document["id"]) == (201, node_id)


async def test_a_secret_that_nobody_knows_admits_nobody(frontend: Frontend) -> None:
    body = {**WORKER, "token": SECRET, "corral": HELLO}
    answer = await frontend.call("POST", "/api/node/register", body, key=SECRET)
    assert (answer.status, answer.json()) == (401, {"error": "invalid registration token"})
    await joined(frontend)
    other = {**body, "corral": {**HELLO, "secret": "o" * 43}}
    assert (await frontend.call("POST", "/api/node/register", other, key=SECRET)).status == 401
    assert (await frontend.call("POST", "/api/node/register", b"{", key=SECRET)).status == 401


async def test_a_lost_secret_is_sealed_again_at_the_next_registration(frontend: Frontend) -> None:
    node_id = await joined(frontend)
    secrets = frontend.secrets
    async with frontend.control.context.database.begin() as connection:
        assert await discard(connection, f"node/{node_id}")
    await joined(frontend)
    assert await secrets.get(f"node/{node_id}") == SECRET


async def test_a_short_secret_is_refused(frontend: Frontend) -> None:
    answer = await frontend.register({**WORKER, "corral": {**HELLO, "secret": "short"}})
    document: Any = answer.json()
    assert answer.status == 400
    assert "corral.secret" in document["error"]["message"]


async def test_the_secret_is_stored_sealed_and_hashed_never_plain(frontend: Frontend) -> None:
    node_id = await joined(frontend)
    for url in (f"/api/v1/nodes/{node_id}", "/api/v1/events?after=0", "/api/nodes"):
        assert SECRET.encode() not in (await frontend.call("GET", url)).body


async def test_a_worker_without_secret_is_shown_the_token_that_it_joined_with(frontend: Frontend) -> None:
    """LocalAI's workers and their backends accept nothing else. The token of other machines is not shown to them."""
    made: Any = (await frontend.call("POST", "/api/v1/keys", {"name": "rack 7", "scopes": ["node"]})).json()
    tokens = frontend.control.context.nodes.tokens

    joined_by_key: Any = (await frontend.register(WORKER, token=made["key"])).json()
    assert await tokens.of(joined_by_key["id"]) == made["key"]

    await frontend.register(WORKER)
    assert await tokens.of(joined_by_key["id"]) == REGISTRATION_TOKEN


async def test_a_worker_that_moved_is_shown_the_token_that_it_moved_with(frontend: Frontend) -> None:
    """It waits for approval again, and does not register again after that."""
    made: Any = (await frontend.call("POST", "/api/v1/keys", {"name": "rack 7", "scopes": ["node"]})).json()
    node_id = (await frontend.register(WORKER)).json()["id"]  # type: ignore[index]
    await frontend.call("POST", f"/api/nodes/{node_id}/approve")

    moved: Any = (await frontend.register({**WORKER, "address": "10.0.0.2:50051"}, token=made["key"])).json()

    assert (moved["id"], moved["status"]) == (node_id, "pending")
    assert await frontend.control.context.nodes.tokens.of(node_id) == made["key"]
