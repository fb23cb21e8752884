"""The OpenAPI description is valid, and says all that the types of a client are made of."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from corral.frontend.api.description import describe
from corral.frontend.api.route import STATUS_OF_CODE, Dialect, RouteSpec
from corral.frontend.routes import ROUTES

STREAM, JSON = "text/event-stream", "application/json"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return describe(ROUTES)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def operation_of(document: dict[str, Any], route: RouteSpec) -> dict[str, Any]:
    path = route.path.replace(":path}", "}")
    found: dict[str, Any] = document["paths"][path][route.method.lower()]
    return found


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(target := value.get("$ref"), str):
            yield target
        yield from (target for item in value.values() for target in references(item))
    elif isinstance(value, list):
        yield from (target for item in value for target in references(item))


def test_every_reference_leads_to_a_schema_and_every_schema_is_used(document: dict[str, Any]) -> None:
    schemas = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) == schemas


def test_parameters_of_paths_are_those_of_the_path_and_none_is_there_twice(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        parameters = [(one["in"], one["name"]) for one in operation["parameters"]]
        assert len(parameters) == len(set(parameters)), name
        in_path = {parameter for place, parameter in parameters if place == "path"}
        assert in_path == set(re.findall(r"\{(\w+)\}", name)), name
        assert all(one["required"] for one in operation["parameters"] if one["in"] == "path"), name


def test_every_refusal_of_our_routes_has_the_one_shape(document: dict[str, Any]) -> None:
    for route in (route for route in ROUTES if route.dialect is Dialect.NATIVE):
        for code, response in operation_of(document, route)["responses"].items():
            if int(code) < 400 or JSON not in response["content"]:
                continue
            schema = response["content"][JSON]["schema"]
            shapes = [one["$ref"].rpartition("/")[2] for one in schema.get("anyOf", [schema])]
            assert shapes[-1] == "ErrorAnswer", f"{route.method} {route.path} {code}"
            for own in shapes[:-1]:
                error = document["components"]["schemas"][own]["properties"]["error"]
                fields = document["components"]["schemas"][error["$ref"].rpartition("/")[2]]["properties"]
                assert {"code", "message"} <= set(fields), own


def test_every_error_has_a_body(document: dict[str, Any]) -> None:
    without = [
        f"{name} {code}"
        for name, operation in operations(document)
        for code, response in operation["responses"].items()
        if int(code) >= 400 and not response.get("content")
    ]
    assert without == []


def test_every_route_of_ours_says_what_it_answers(document: dict[str, Any]) -> None:
    without = [
        f"{route.method} {route.path}"
        for route in ROUTES
        if route.dialect is Dialect.NATIVE
        and (code := min(route.codes)) != 204
        and not operation_of(document, route)["responses"][str(code)].get("content")
    ]
    assert without == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [("limit", "integer"), ("lines", "integer"), ("before", "integer"), ("page", "integer"), ("follow", "boolean")],
)
def test_parameters_have_types(document: dict[str, Any], name: str, kind: str) -> None:
    schemas = [
        parameter["schema"]
        for _, operation in operations(document)
        for parameter in operation["parameters"]
        if parameter["in"] == "query" and parameter["name"] == name
    ]
    assert schemas
    assert {schema["type"] for schema in schemas} == {kind}


def test_what_takes_only_some_words_lists_them(document: dict[str, Any]) -> None:
    parameters = {one["name"]: one["schema"] for one in document["paths"]["/api/v1/operations"]["get"]["parameters"]}
    assert parameters["state"]["items"]["enum"] == ["running", "waiting", "done", "failed", "cancelled"]
    assert "install" in parameters["verb"]["items"]["enum"]


def test_parameters_in_the_query_are_not_said_to_be_given_several_times_without_being_lists(
    document: dict[str, Any],
) -> None:
    for name, operation in operations(document):
        for parameter in operation["parameters"]:
            several = "several times" in parameter.get("description", "")
            assert several == (parameter["schema"].get("type") == "array"), f"{name} {parameter['name']}"


def test_every_code_of_an_error_is_named_with_its_status(document: dict[str, Any]) -> None:
    text = document["components"]["schemas"]["ErrorDetail"]["properties"]["code"]["description"]
    for code, status in {**STATUS_OF_CODE, "stale_plan": 409}.items():
        assert f"`{code}` ({status})" in text


def test_streams_describe_their_events(document: dict[str, Any]) -> None:
    streams = {
        name
        for name, operation in operations(document)
        if STREAM in operation["responses"].get("200", {}).get("content", {})
    }
    assert streams >= {
        "GET /api/v1/events",
        "GET /api/v1/operations/stream",
        "GET /api/v1/operations/{id}/stream",
        "GET /api/v1/nodes/{id}/logs/{model}",
    }
    log = document["paths"]["/api/v1/nodes/{id}/logs/{model}"]["get"]["responses"]["200"]["content"]
    names = [one["$ref"].rpartition("/")[2] for one in log[STREAM]["schema"]["anyOf"]]
    assert names == ["LogLineView", "LogGap"]
    assert log[JSON]["schema"]["$ref"].endswith("/LogPage")


def test_a_stale_plan_is_described_with_the_new_plan(document: dict[str, Any]) -> None:
    refusal = document["paths"]["/api/v1/operations"]["post"]["responses"]["409"]["content"][JSON]["schema"]
    assert [one["$ref"].rpartition("/")[2] for one in refusal["anyOf"]] == ["StalePlan", "ErrorAnswer"]


def test_answers_have_all_fields_that_are_always_sent_and_asks_only_those_that_must_be(
    document: dict[str, Any],
) -> None:
    schemas = document["components"]["schemas"]
    assert {"hash", "text", "in_flight", "consequences"} <= set(schemas["ActPlanView"]["required"])
    assert "reported_at" not in schemas["ActPlanView"]["required"]
    assert schemas["OperationAsk"]["required"] == ["verb"], "who asks may leave the others out"
    assert schemas["ErrorDetail"]["required"] == ["code", "message"], "the others are not always there"
    for name, schema in schemas.items():
        assert set(schema.get("required", [])) <= set(schema.get("properties", {})), name


def test_every_body_that_may_be_left_out_says_so(document: dict[str, Any]) -> None:
    bodies = {name: operation["requestBody"] for name, operation in operations(document) if "requestBody" in operation}
    assert bodies["POST /api/v1/nodes/{id}/drain"]["required"] is False
    assert bodies["POST /api/v1/operations"]["required"] is True
