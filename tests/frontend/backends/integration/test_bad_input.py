"""What is wrong with a request about backends is said in LocalAI's form, with the field and the value."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from corral.bus.port import Bus
from corral.frontend.store.db import Database
from tests.kit.clock import ManualClock
from tests.kit.world import World, open_world

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@pytest.fixture
async def world(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(database, clock, bus, tmp_path, max_body=2000) as world:
        yield world


EXTERNAL = "/api/backends/install-external"
APPLY = "/backends/apply"
NODE = "/api/nodes/NODE/backends"
NATIVE = "/api/v1/operations"
OCI = "oci://r.example/custom:v1"
TOO_LARGE = "the body exceeds 2000 bytes; the setting frontend.max_body (CORRAL_MAX_BODY) allows more"


WRONG: list[tuple[str, object, int, str]] = [
    # No body, or none that can be read.
    (EXTERNAL, b"", 400, "invalid request body"),
    (EXTERNAL, b"{", 400, "invalid request body"),
    (EXTERNAL, b"[]", 400, "expected a JSON object"),
    (EXTERNAL, {"uri": 7}, 400, "uri: expected `str`, got `int`"),
    (APPLY, b"nope", 400, "invalid request body"),
    (APPLY, {"id": "x", "force": "yes"}, 400, "force: expected `bool`, got `str`"),
    (APPLY, {}, 400, "id: is empty"),
    (f"{NODE}/install", b"{", 400, "invalid request body"),
    (f"{NODE}/install", {"backend": ["x"]}, 400, "backend: expected `str`"),
    (f"{NODE}/install", {}, 400, "backend name or uri required"),
    (f"{NODE}/upgrade", {"uri": OCI}, 400, "backend name required"),
    (f"{NODE}/delete", {}, 400, "backend name required"),
    (f"{NODE}/install", {"backend": "x" * 3000}, 413, TOO_LARGE),
    (EXTERNAL, {"uri": "x" * 3000}, 413, TOO_LARGE),
    (APPLY, {"id": "x" * 3000}, 413, TOO_LARGE),
    # Uris and names.
    (EXTERNAL, {}, 400, "uri is required"),
    (EXTERNAL, {"uri": OCI}, 400, "name: an install of the image oci://r.example/custom:v1 needs a name"),
    (EXTERNAL, {"uri": "oci://r.example/Custom", "name": "x"}, 400, "uri: 'r.example/Custom'"),
    (EXTERNAL, {"uri": "oci://r.example/a b", "name": "x"}, 400, "uri: 'oci://r.example/a b' has blanks"),
    (EXTERNAL, {"uri": "ftp://r.example/x", "name": "x"}, 400, "unknown scheme 'ftp'"),
    (EXTERNAL, {"uri": "https:///x.tar", "name": "x"}, 400, "uri: 'https:///x.tar' is not a URL"),
    (EXTERNAL, {"uri": "ocifile://x.tar", "name": "x"}, 400, "needs the full path"),
    (EXTERNAL, {"uri": "echo", "name": "x"}, 400, "uri: 'echo' is none"),
    (EXTERNAL, {"uri": OCI, "name": "../x"}, 400, "name: '../x'"),
    (EXTERNAL, {"uri": "oci://r.example:99999/x:v1", "name": "x"}, 400, "'r.example:99999' is no registry"),
    (f"{NODE}/install", {"backend": "../../etc"}, 400, "backend: '../../etc' cannot be the name"),
    (f"{NODE}/install", {"backend": "oci://r.example/x:v1"}, 400, "a uri goes into `uri`"),
    (f"{NODE}/delete", {"backend": ".."}, 400, "backend: '..' cannot be the name"),
    ("/api/backends/delete/g@../x", None, 400, "backend: 'g@../x' cannot be the name"),
    (EXTERNAL, {"uri": OCI, "name": "x", "alias": "a\u0000"}, 400, "alias: 'a\\x00'"),
    (f"{NODE}/install", {"uri": OCI}, 400, "needs a name"),
    (f"{NODE}/install", {"backend": "x", "backend_galleries": "{"}, 400, "backend_galleries: not valid JSON"),
    (f"{NODE}/install", {"backend": "x", "backend_galleries": "{}"}, 400, "expected a JSON list"),
    (NATIVE, {"verb": "install", "backend": "x", "galleries": "["}, 400, "galleries"),
    ("/api/backends/install/" + "x" * 300, None, 400, "backend: "),
    ("/api/backends/install/a%07b", None, 400, "backend: 'a\\x07b'"),
    ("/api/backends/install/a%00b", None, 400, "NUL"),
    # Nodes and selectors.
    ("/api/nodes/nobody/backends/install", {"backend": "x"}, 404, "no node has the id nobody"),
    ("/api/nodes/nobody/backends/upgrade", {"backend": "x"}, 404, "no node has the id nobody"),
    ("/api/nodes/nobody/backends/delete", {"backend": "x"}, 500, "failed to delete backend on node: no node"),
    ("/api/nodes/AGENT/backends/install", {"backend": "x"}, 409, "agent"),
    ("/api/nodes/PENDING/backends/install", {"backend": "x"}, 409, "approval"),
    (f"{NODE}/upgrade", {"backend": "x"}, 409, 'backend "x" is not installed on any node'),
    (NATIVE, {"verb": "install", "backend": "x", "labels": {"zone": "z"}}, 409, "zone=z"),
    (NATIVE, {"verb": "install", "backend": "x", "nodes": "w1"}, 400, "nodes"),
    (NATIVE, {"verb": "upgrade", "backend": "x", "labels": {"zone": "z"}}, 409, "zone=z"),
]
"""Where, what, the code, and part of what is said."""


async def test_what_is_wrong_is_named(world: World) -> None:
    node = await world.backends("w1")
    agent: Any = (await world.frontend.register({"name": "a", "node_type": "agent"})).json()
    pending: Any = (await world.frontend.register({"name": "p", "address": "a:1"})).json()
    ids = {"NODE": str(node.node_id), "AGENT": agent["id"], "PENDING": pending["id"]}
    unlike = []
    for path, sent, status, said in WRONG:
        answer = await world.frontend.call("POST", "/".join(ids.get(part, part) for part in path.split("/")), sent)
        if answer.status != status or said not in _message(path, answer.json()):
            unlike.append((path, sent, answer))
    assert unlike == []
    assert node.requests == []
    listed: Any = (await world.frontend.call("GET", NATIVE)).json()
    assert listed["items"] == []


def _message(path: str, body: Any) -> str:
    """Where errors stand in the form of the route."""
    error = body["error"]
    if path.startswith("/api/backends"):
        assert isinstance(error, str)
        return error
    if path.startswith("/api/v1/"):
        return f"{error.get('field', '')} {error['message']}"
    assert set(error) == {"code", "message", "type"}
    assert error["type"] == ("node_error" if path.startswith("/api/nodes") else "")
    return str(error["message"])


async def test_without_a_node_nothing_is_accepted(world: World) -> None:
    """Defect 18: LocalAI reports success when there are no nodes."""
    for path in ("/api/backends/install/x", "/api/backends/delete/x", "/api/backends/system/delete/x"):
        answer = await world.frontend.call("POST", path)
        assert (answer.status, answer.json()) == (409, {"error": "there is no node to do that on"})


async def test_files_and_archives_have_a_name_themselves(world: World) -> None:
    """backends.md 3.18: a directory's base name, a file's name without its ending."""
    named = {
        "mine": "/srv/backends/mine",
        "engine": "ocifile:///srv/images/engine.tar",
        "tool": "https://r.example/path/tool.tar.gz?x=1",
    }
    node = await world.backends("w1")
    for uri in named.values():
        assert (await world.frontend.call("POST", EXTERNAL, {"uri": uri})).status == 200
    await world.control.context.operations.dispatcher.tick()
    assert {name: entry.uri for name, entry in node.disk.items()} == named
