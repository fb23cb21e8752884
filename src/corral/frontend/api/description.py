"""The OpenAPI description, made from the list of routes: what each takes, what it answers, and how it refuses."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from corral import __version__
from corral.frontend.access.decide import Permission
from corral.frontend.api.parameters import QueryField, field_of
from corral.frontend.api.route import JSON, STATUS_OF_CODE, Access, BodyTooLarge, Dialect, RouteSpec
from corral.wire.plans import PlanError
from corral.wire.refusals import ErrorAnswer, ErrorDetail, OpenAiErrorAnswer, Refusal
from corral.wire.sessions import SESSION_EXPIRED

_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
_PREFIX: Final = "#/components/schemas/"
_STREAM: Final = "text/event-stream"
_TEXT: Final = {"type": "string"}
_KEY: Final[list[dict[str, list[str]]]] = [{"key": []}]
_SECURITY: Final[dict[Access | Permission, list[dict[str, list[str]]]]] = {
    Access.PUBLIC: [],
    Access.WORKER: [{"node": []}],
}
_FIRST_ERROR: Final = 400
ERROR_CODES: Final = dict(
    sorted({**STATUS_OF_CODE, PlanError().code: 409, SESSION_EXPIRED: 401, BodyTooLarge.code: 413, "csrf": 403}.items())
)
"""The codes of errors, with the statuses that they come with."""


def describe(routes: Sequence[RouteSpec]) -> dict[str, Any]:
    """The OpenAPI document of these routes, as values for JSON."""
    body_types = [route.takes for route in routes if route.takes is not None]
    schemas = Schemas((kind for route in routes for kind in _kinds(route)), body_types=body_types)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schemas)
    codes = ", ".join(f"`{code}` ({status})" for code, status in ERROR_CODES.items())
    schemas.components[ErrorDetail.__name__]["properties"]["code"]["description"] = (
        f"For programs: one of {codes}, or the HTTP status as a number where no route or no key was accepted."
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Corral", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "an API key"},
                "node": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "the registration token, or a node's own secret",
                },
            },
        },
    }


def _kinds(route: RouteSpec) -> Iterator[object]:
    """All types that the description of a route names."""
    yield from (ErrorAnswer, OpenAiErrorAnswer, Refusal)
    yield from (kind for kind in (route.takes, route.gives) if kind is not None)
    yield from route.streams.values()
    yield from route.refusals.values()


class Schemas:
    """The schemas of bodies and answers, each type described once.

    Who asks may leave out a field that has a default; who answers sends it. So what only answers have is described with
    all fields that are always there.
    """

    def __init__(self, kinds: Iterable[object], *, body_types: Iterable[object]) -> None:
        """`body_types` are the types of what callers send."""
        distinct = {repr(kind): kind for kind in kinds}
        schemas, components = msgspec.json.schema_components(
            list(distinct.values()), ref_template=f"{_PREFIX}{{name}}", schema_hook=_anything
        )
        self._schemas = dict(zip(distinct, schemas, strict=True))
        self.components: dict[str, Any] = components
        sent = self._reached(self.of(kind) for kind in body_types)
        for struct in _structs(msgspec.Struct):
            if struct.__name__ in components.keys() - sent:
                components[struct.__name__]["required"] = _always_sent(struct, components[struct.__name__])

    def _reached(self, schemas: Iterable[dict[str, Any]]) -> set[str]:
        """The names of components that these schemas lead to."""
        names: set[str] = set()
        pending = [name for schema in schemas for name in _references(schema)]
        while pending:
            if (name := pending.pop()) not in names:
                names.add(name)
                pending += _references(self.components[name])
        return names

    def of(self, kind: object) -> dict[str, Any]:
        return self._schemas[repr(kind)]

    def any_of(self, kinds: Iterable[object]) -> dict[str, Any]:
        """The schema of a value that is of one of these types."""
        schemas = [self.of(kind) for kind in dict.fromkeys(kinds)]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _references(schema: object) -> Iterator[str]:
    """The names of components that a schema mentions."""
    if isinstance(schema, dict):
        if isinstance(name := schema.get("$ref"), str):
            yield name.removeprefix(_PREFIX)
        yield from (name for value in schema.values() for name in _references(value))
    elif isinstance(schema, list):
        yield from (name for value in schema for name in _references(value))


def _structs(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """All structs of Corral that are derived from this one."""
    for struct in kind.__subclasses__():
        if struct.__module__.startswith("corral."):
            yield struct
            yield from _structs(struct)


def _always_sent(struct: type[msgspec.Struct], schema: dict[str, Any]) -> list[str]:
    """The fields that an answer of this type always has."""
    if struct.__struct_config__.omit_defaults:
        return list(schema.get("required", []))
    tag = struct.__struct_config__.tag_field
    fields = [
        struct_field.encode_name for struct_field in msgspec.structs.fields(struct) if struct_field.default is not UNSET
    ]
    return [*([tag] if tag else []), *fields]


def _anything(kind: type) -> dict[str, Any]:
    """Plain JSON of any form."""
    if kind is object:
        return {"description": "any JSON value"}
    raise NotImplementedError(f"{kind} has no JSON form")


def _operation(route: RouteSpec, schemas: Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "security": _SECURITY.get(route.access, _KEY),
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": _TEXT}
                for name in _PARAMETER.findall(route.path)
            ),
            *(_query_parameter(name, field_of(described)) for name, described in route.query.items()),
        ],
        "responses": {str(code): _response(route, code, text, schemas) for code, text in all_codes(route).items()},
    }
    if route.takes is not None:
        operation["requestBody"] = {
            "content": {JSON: {"schema": schemas.of(route.takes)}},
            "required": not route.may_be_empty,
        }
    return operation


def _query_parameter(name: str, field: QueryField) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": field.text, "schema": dict(field.schema)}


def _response(route: RouteSpec, code: int, text: str, schemas: Schemas) -> dict[str, Any]:
    content = _refusal(route, code, schemas) if code >= _FIRST_ERROR else _answer(route, code, schemas)
    return {"description": text, "content": content} if content else {"description": text}


def _answer(route: RouteSpec, code: int, schemas: Schemas) -> dict[str, Any]:
    """The body of a good answer. Of several good statuses the smallest one has it."""
    if code != min(route.codes):
        return {}
    content: dict[str, Any] = {}
    if route.gives is not None:
        content[JSON] = {"schema": schemas.of(route.gives)}
    elif route.media != JSON:
        content[route.media] = {"schema": _TEXT}
    if route.streams:
        words = ", ".join(f"`{event}`" for event in route.streams)
        schema = schemas.any_of(route.streams.values())
        content[_STREAM] = {"schema": {"description": f"`data` of server-sent events: {words}", **_nested(schema)}}
    return content


def _nested(schema: dict[str, Any]) -> dict[str, Any]:
    return {"allOf": [schema]} if "$ref" in schema else schema


_USUAL_REFUSALS: Final = {Dialect.NATIVE: ErrorAnswer, Dialect.OPENAI: OpenAiErrorAnswer}


def _refusal(route: RouteSpec, code: int, schemas: Schemas) -> dict[str, Any]:
    """The body of an error: in the form of the route's dialect, or of its own."""
    if route.media != JSON and code in route.codes:
        return {route.media: {"schema": _TEXT}}
    usual = _USUAL_REFUSALS.get(route.dialect, Refusal)
    route_body = route.refusals.get(code)
    return {JSON: {"schema": schemas.any_of([usual] if route_body is None else [route_body, usual])}}


def all_codes(route: RouteSpec) -> dict[int, str]:
    """What the handler answers, and what stands before every handler."""
    codes = dict(route.codes)
    if (permission := route.permission) is not None:
        missing = f"the key lacks the permission {permission}"
        codes |= {401: "no key, or one that is unknown, expired or revoked", 403: missing}
    if route.access is not Access.PUBLIC:
        codes |= {503: "the database is away; try again"}
    if route.takes is not None or (route.method in ("PUT", "PATCH") and route.path.endswith("/labels")):
        codes |= {413: "the body is too large"}
    return dict(sorted(codes.items()))
