"""Routing: decides whether a model, the gateway itself or control answers a request, and which web pages may ask.

There is one CORS policy for all routes: CORS headers of engines and of control are removed from their responses (see
`upstream.AnswerHead`).
"""

import re
from collections.abc import Collection
from typing import Final
from urllib.parse import unquote_to_bytes

from corral.gateway import anthropic, ollama
from corral.gateway.admit import admit_key, admit_lister, shows_session, valid_key, valid_session
from corral.gateway.answers import Answer, ErrorShape, GatewayRefusal
from corral.gateway.bodies import check_encoding
from corral.gateway.deployments import plain_route
from corral.gateway.exchange import ClientSide, Exchange, Services
from corral.gateway.head import RequestHead
from corral.gateway.inference import ANTHROPIC_PATHS, OLLAMA_PATHS, ROUTES, Inference, NamedByPath
from corral.gateway.passing import METRICS_PATH, FromWorker, Metrics, Passing
from corral.wire.keys import UNCHECKED, KeylessRoute, RequiredProof, find_keyless, is_respelled_keyless
from corral.wire.refusals import BEARER_REQUIRED, KEY_REQUIRED, OPENAI_PATHS, SESSION_OVER
from corral.wire.view import KeyEntry, ModelEntry

ANY: Final = "*"
_EXPOSED: Final = b"Access-Control-Expose-Headers: X-Request-ID, Retry-After\r\n"
_VARY: Final = b"Vary: Origin\r\n"
_METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE"
_FIELD_NAMES: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]*")
_MAX_AGE_SECONDS: Final = 600
METHODS: Final = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})
_READING: Final = frozenset({b"GET", b"HEAD"})
_MODELS: Final = frozenset({b"/v1/models", b"/models"})
_MODEL: Final = b"/v1/models/"
_ANTHROPIC: Final = b"anthropic-version:"
_CAPABILITIES: Final = b"/v1/models/capabilities"
"""LocalAI's list of what models are for, which control knows. It hides a model of that name here, as with LocalAI."""
_HEALTH: Final = frozenset({b"/healthz", b"/health"})
"""`/health` is what llama.cpp and vLLM call it."""
OWN_PATHS: Final = _HEALTH | {b"/readyz"}
"""Paths that the gateway answers without asking control."""
_OPENAI: Final = OPENAI_PATHS.encode()


class CorsPolicy:
    def __init__(self, origins: Collection[str]) -> None:
        self._allows_any = ANY in origins
        self._origins = frozenset(origin.encode() for origin in origins)
        self.is_on = bool(origins)

    def lines(self, origin: bytes | None) -> bytes:
        """Return the header lines for a response to a request from this origin.

        Credentials are allowed only for origins that are listed by name.
        """
        if self._allows_any:
            return b"" if origin is None else b"Access-Control-Allow-Origin: *\r\n" + _EXPOSED
        if origin is None or origin.lower() not in self._origins:
            return _VARY
        named = b"Access-Control-Allow-Origin: %b\r\nAccess-Control-Allow-Credentials: true\r\n" % origin
        return named + _EXPOSED + _VARY

    def preflight(self, head: RequestHead) -> Answer:
        """Return the answer to a preflight request. Raise `GatewayRefusal` for an origin that is not allowed."""
        origin = head.origin or b""
        if not self._allows_any and origin.lower() not in self._origins:
            knob = "the setting gateway.cors_origins (CORRAL_CORS_ORIGINS) names those that may"
            text = f"pages of the origin {origin.decode('latin-1')[:200]} may not send requests; {knob}"
            raise GatewayRefusal(403, text, code="origin_not_allowed")
        names = head.preflight_headers if _FIELD_NAMES.fullmatch(head.preflight_headers) else b""
        headers = {"Access-Control-Allow-Methods": _METHODS, "Access-Control-Max-Age": str(_MAX_AGE_SECONDS)}
        if names:
            headers["Access-Control-Allow-Headers"] = names.decode()
        return Answer(204, b"", headers)


Admission = KeyEntry | KeylessRoute
"""Why a request is admitted: its key, or a route that needs none."""


class Router:
    """Checks heads before bodies are read, and starts the exchange once they are complete."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._directory = services.directory
        self._views_expire = services.config.max_view_age is not None
        self.cors = CorsPolicy(services.config.cors_origins)

    def admit(self, head: RequestHead) -> Admission:
        """Return the valid key, or the route that needs none. Raise `GatewayRefusal` before the body is read.

        A head that its client repeats is checked again only when the view has changed, or time matters.
        """
        if head.admitted_by is not None and head.admitted_in == self._directory.revision:
            return head.admitted_by
        admission = self._check(head)
        if isinstance(admission, KeyEntry) and admission.expires_at is None and not self._views_expire:
            head.admitted_by, head.admitted_in = admission, self._directory.revision
        return admission

    def _check(self, head: RequestHead) -> Admission:
        if head.method not in METHODS:
            raise GatewayRefusal(405, "this method is not known here", code="method_not_allowed", closes=True)
        if head.path in ROUTES:
            if head.method != b"POST":
                raise GatewayRefusal(405, "use POST here", code="method_not_allowed", headers={"Allow": "POST"})
            if head.encoding:
                check_encoding(head.encoding)
        elif not _asks_for_models(head) and not ollama.is_own(head.path):
            if (route := plain_route(head.path)) is None:
                return self._admit_to_control(head)
            head.path, head.model = route
            return self._check(head)
        if self._is_view_too_old():
            raise GatewayRefusal.busy(503, "control has been away for longer than `max_view_age`", code="view_too_old")
        admit = admit_key if head.path in ROUTES else admit_lister
        return admit(self._services.directory, head, self._services.clock)

    def _admit_to_control(self, head: RequestHead) -> Admission:
        """Require a valid key or session, or a route that needs none. Control itself checks what these may do.

        The routes of nodes have their limits whatever key is shown: only control knows whether it is a node's.
        """
        services = self._services
        if is_respelled_keyless(head.method, head.path):
            raise GatewayRefusal(400, "write this path without percent signs", code="encoded_path")
        route = find_keyless(head.method, head.path)
        has_session = shows_session(head)
        if services.directory.version is None and (head.key or has_session):
            return route or UNCHECKED
        if route is not None and route.proof is RequiredProof.NODE:
            return _admit_node(route, head)
        try:
            prove = valid_session if has_session else valid_key
            return prove(services.directory, head, services.clock)
        except GatewayRefusal as refusal:
            if route is not None and self._is_open(route):
                return route
            if head.path.startswith(_OPENAI):  # inference routes answer in OpenAI's format, all others in LocalAI's
                raise
            body = SESSION_OVER if has_session else KEY_REQUIRED
            headers = {"WWW-Authenticate": "Bearer"}
            raise GatewayRefusal.by_localai(401, body, code=refusal.code, headers=headers) from None

    def _is_open(self, route: KeylessRoute) -> bool:
        if route.proof is not RequiredProof.NOTHING_BY_SETTING:
            return True
        directory = self._services.directory
        return directory.version is None or directory.control.metrics_public

    def exchange(self, client: ClientSide, head: RequestHead, body: bytes, admission: Admission) -> Exchange | None:
        """Return the exchange that relays this request, or None when `answer` responds."""
        if isinstance(admission, KeyEntry):
            if head.path in ROUTES:
                kind = NamedByPath if head.model else Inference
                return kind(self._services, client, head, body, admission)
        elif admission.proof is RequiredProof.NODE:
            return FromWorker(self._services, client, head, body)
        if ollama.is_own(head.path):
            return None
        if head.method in _READING:
            if head.path in OWN_PATHS or _asks_for_models(head):
                return None
            if head.path == METRICS_PATH:
                return Metrics(self._services, client, head, body)
        return Passing(self._services, client, head, body)

    def answer(self, head: RequestHead, body: bytes, admission: Admission) -> Answer:
        """Return the gateway's own response. Raise `GatewayRefusal`."""
        only = admission.models if isinstance(admission, KeyEntry) else None
        if ollama.is_own(head.path):
            return ollama.answer(self._services.directory, head, body, only=only)
        match head.path:
            case path if path in _HEALTH:
                return Answer(200, {"status": "ok"})
            case b"/readyz":
                return self._readiness()
            case path if path in _MODELS:
                entries = self._services.directory.models(only)
                if _speaks_anthropic(head):
                    return Answer(200, anthropic.model_list(entries))
                return Answer(200, {"object": "list", "data": [_model_object(entry) for entry in entries]})
            case path:
                name = unquote_to_bytes(path.removeprefix(_MODEL)).decode(errors="replace")
                directory = self._services.directory
                entry = directory.find_model(name) if only is None else directory.find_allowed(name, only)
                return Answer(200, anthropic.model(entry) if _speaks_anthropic(head) else _model_object(entry))

    def _readiness(self) -> Answer:
        """Return 200 when models can be served. What control lacks is listed, but does not make the gateway unready."""
        directory, now = self._services.directory, self._services.loop.time()
        control: dict[str, object] = {"state": "up"}
        if directory.away_since is not None:
            control = {"state": "away", "for_seconds": round(now - directory.away_since, 1)}
        elif problems := list(directory.control.problems):  # what control itself reports
            control = {"state": "impaired", "problems": problems}
        if directory.version is None:
            text = "the gateway has not heard from control yet"
            return Answer(503, {"status": "no view", "message": text, "control": control})
        view = {"version": directory.version, "age_seconds": round(directory.age(now), 1)}
        if self._is_view_too_old():
            text = "control has been away for longer than `max_view_age`"
            return Answer(503, {"status": "view too old", "message": text, "control": control, "view": view})
        return Answer(200, {"status": "ready", "control": control, "view": view})

    def _is_view_too_old(self) -> bool:
        bound = self._services.config.max_view_age
        directory = self._services.directory
        if bound is None or directory.version is None:
            return False
        return directory.age(self._services.loop.time()) > bound.total_seconds()


def error_shape(path: bytes) -> ErrorShape:
    """Return the shape that clients of this path expect of errors."""
    if path in ANTHROPIC_PATHS:
        return ErrorShape.ANTHROPIC
    if path in OLLAMA_PATHS or ollama.is_own(path):
        return ErrorShape.OLLAMA
    return ErrorShape.OPENAI


def _admit_node(route: KeylessRoute, head: RequestHead) -> KeylessRoute:
    if head.key is None:
        raise GatewayRefusal.by_localai(401, BEARER_REQUIRED, code="missing_api_key")
    return route


def _asks_for_models(head: RequestHead) -> bool:
    if head.method not in _READING or head.path == _CAPABILITIES:
        return False
    return head.path in _MODELS or head.path.startswith(_MODEL)


def _speaks_anthropic(head: RequestHead) -> bool:
    """Whether the sender is a client of Anthropic's, which reads lists of models in a form of their own."""
    return any(line.lower().startswith(_ANTHROPIC) for line in head.lines)


def _model_object(entry: ModelEntry) -> dict[str, object]:
    return {"id": entry.name, "object": "model", "created": entry.created, "owned_by": entry.owned_by}
