"""LocalAI's routes, their codes and the fields of their answers, against our OpenAPI document and our live routes.

The list is `reference_routes.json`: all that LocalAI's frontends serve about nodes, operations, backends and models. A
path's parameters have LocalAI's names there; a field is written `list[].field`.
"""

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.bus.port import Bus
from corral.frontend.api.description import describe
from corral.frontend.routes import ROUTES
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import SecretsKey
from tests.kit.clock import ManualClock
from tests.kit.frontend import Frontend, frontend_config, open_frontend

LIST = Path(__file__).parent / "reference_routes.json"
Route = dict[str, Any]

_HOST = "about LocalAI's own process and its settings; not built"

NOT_BUILT: dict[str, str] = {
    "GET /ws/nodes/:id/backend-logs/:modelId": "live logs are the worker's own route; frontends pass on the rest",
    "GET /api/settings": _HOST,
    "POST /api/settings": _HOST,
    "POST /backend/load": _HOST,
    "GET /backend/monitor": _HOST,
    "GET /api/resources": _HOST,
}
"""Routes of capabilities that Corral does not have. One that has been built must leave this list."""

NEVER_ANSWERED: dict[tuple[str, int], str] = {
    ("POST /api/operations/:jobID/cancel", 400): "a cancel of what is over changes nothing, and is answered 200",
}
"""Codes of LocalAI's that ours have no reason for. 500 is not on it: see below."""


def read_routes() -> list[Route]:
    routes: list[Route] = json.loads(LIST.read_text(encoding="utf-8"))["routes"]
    return routes


def name_of(route: Route) -> str:
    return f"{route['method']} {route['path']}"


def shape(path: str) -> str:
    """A path without the names of its parameters."""
    return re.sub(r":\w+|\{[^}]*\}", "*", path)


def built() -> list[Route]:
    return [route for route in read_routes() if name_of(route) not in NOT_BUILT]


@pytest.fixture(scope="module")
def openapi() -> dict[str, Any]:
    return describe(ROUTES)


def described(openapi: dict[str, Any], route: Route) -> dict[str, Any] | None:
    for path, methods in openapi["paths"].items():
        if shape(path) == shape(route["path"]) and route["method"].lower() in methods:
            found: dict[str, Any] = methods[route["method"].lower()]
            return found
    return None


def test_each_route_is_there_once() -> None:
    names = [name_of(route) for route in read_routes()]
    assert len(names) == len(set(names))


def test_every_route_is_described_or_on_the_list_of_what_is_not_built(openapi: dict[str, Any]) -> None:
    missing = {name_of(route) for route in read_routes() if described(openapi, route) is None}
    assert missing == set(NOT_BUILT)


def test_every_code_is_described(openapi: dict[str, Any]) -> None:
    """Where LocalAI says 500 because its database or NATS failed, ours say 503, and when to try again."""
    missing = set()
    for route in built():
        codes = set(described_codes(openapi, route))
        away = {500} if 503 in codes else set()
        missing |= {(name_of(route), code) for code in set(route["codes"]) - codes - away}
    assert missing == set(NEVER_ANSWERED)


def described_codes(openapi: dict[str, Any], route: Route) -> list[int]:
    found = described(openapi, route)
    assert found is not None
    return [int(code) for code in found["responses"]]


def test_every_field_of_an_answer_is_described(openapi: dict[str, Any]) -> None:
    missing = []
    for route in built():
        if route["fields"]:
            schema = good_answer(openapi, route)
            missing += [f"{name_of(route)} {field}" for field in route["fields"] if not has(openapi, schema, field)]
    assert missing == []


def good_answer(openapi: dict[str, Any], route: Route) -> dict[str, Any]:
    found = described(openapi, route)
    assert found is not None
    contents = [one["content"] for one in found["responses"].values() if "content" in one]
    assert contents, f"{name_of(route)} does not say what it answers"
    schema: dict[str, Any] = contents[0]["application/json"]["schema"]
    return schema


def has(openapi: dict[str, Any], schema: dict[str, Any], field: str) -> bool:
    """Whether a document of this schema may have the field."""
    if not field:
        return True
    return any(_has(openapi, one, field) for one in _alternatives(openapi, schema))


def _has(openapi: dict[str, Any], schema: dict[str, Any], field: str) -> bool:
    if field.startswith("[]"):
        return schema.get("type") == "array" and has(openapi, schema["items"], field[2:].removeprefix("."))
    name, rest = re.fullmatch(r"(\w+)\.?(.*)", field).groups()  # type: ignore[union-attr]
    properties = schema.get("properties", {})
    return name in properties and has(openapi, properties[name], rest)


def _alternatives(openapi: dict[str, Any], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "$ref" in schema:
        schema = openapi["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        for one in schema["anyOf"]:
            yield from _alternatives(openapi, one)
    else:
        yield schema


@pytest.fixture
async def frontend(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[Frontend]:
    config = frontend_config(tmp_path)
    async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as opened:
        yield opened


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_every_route_is_served(frontend: Frontend) -> None:
    """Whatever it answers to nonsense, it knows the route."""
    for route in built():
        path = re.sub(r":\w+", "nothing", route["path"])
        answer = await frontend.call(route["method"], path, {})
        assert answer.status != 405, name_of(route)
        assert b"no such route" not in answer.body, name_of(route)


def test_what_differs_is_noticed(openapi: dict[str, Any]) -> None:
    """The comparison itself."""
    route: Route = {"method": "GET", "path": "/api/operations", "codes": [200], "fields": []}
    schema = good_answer(openapi, route)
    assert has(openapi, schema, "operations[].nodes[].node_name")
    assert not has(openapi, schema, "operations[].nodes[].colour")
    assert not has(openapi, schema, "operations.id")
    assert described(openapi, {**route, "path": "/api/operation"}) is None
