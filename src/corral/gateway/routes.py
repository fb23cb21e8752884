"""Which request is answered by whom: by a model, by the gateway itself, or by control."""

from typing import Final
from urllib.parse import unquote_to_bytes

from corral.gateway import own_metrics
from corral.gateway.admit import admit_key
from corral.gateway.answers import Answer, Refusal
from corral.gateway.bodies import check_encoding
from corral.gateway.exchange import Client, Exchange, Services
from corral.gateway.head import RequestHead
from corral.gateway.inference import ROUTES, Inference
from corral.gateway.passing import Passing
from corral.gateway.view import Directory
from corral.protocol.view import KeyEntry, ModelEntry

METHODS: Final = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})
_READING: Final = frozenset({b"GET", b"HEAD"})
_MODELS: Final = frozenset({b"/v1/models", b"/models"})
_MODEL: Final = b"/v1/models/"
_HEALTH: Final = frozenset({b"/healthz", b"/health"})
"""The second as llama.cpp and vLLM call it."""
_OWN: Final = _HEALTH | {b"/readyz"}


class Router:
    """Looks at heads before bodies are read, and starts what answers once they are."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def admit(self, head: RequestHead) -> KeyEntry | None:
        """Who asks a model; None for requests that others authenticate. Refusal for what is not worth a body."""
        if head.method not in METHODS:
            raise Refusal(405, "this method is not known here", code="method_not_allowed", closes=True)
        path = head.path
        if path in ROUTES:
            _only(head, b"POST")
            if head.encoding:
                check_encoding(head.encoding)
        elif not (path in _MODELS or path.startswith(_MODEL)) or head.method not in _READING:
            return None
        self._check_age()
        return admit_key(self._services.directory, head, self._services.clock)

    def exchange(self, client: Client, head: RequestHead, body: bytes, key: KeyEntry | None) -> Exchange | None:
        """What relays this request; None when `answer` has to."""
        if head.path in ROUTES and key is not None:
            return Inference(self._services, client, head, body, key)
        if head.method in _READING:
            if key is not None or head.path in _OWN:
                return None
            if head.path == own_metrics.PATH:
                return own_metrics.Metrics(self._services, client, head, body)
        return Passing(self._services, client, head, body)

    def answer(self, head: RequestHead) -> Answer:
        """Raises Refusal."""
        match head.path:
            case path if path in _HEALTH:
                return Answer(200, {"status": "ok"})
            case b"/readyz":
                return self._readiness()
            case path if path in _MODELS:
                return Answer(200, {"object": "list", "data": [*map(_shown, self._services.directory.models())]})
            case path:
                name = unquote_to_bytes(path.removeprefix(_MODEL)).decode(errors="replace")
                return Answer(200, _shown(self._services.directory.find_model(name)))

    def _readiness(self) -> Answer:
        """Ready is who can serve models: whatever control lacks is told, and does not count."""
        directory, now = self._services.directory, self._services.loop.time()
        control = _control_state(directory, now)
        if directory.version is None:
            told = "the gateway has not heard from control yet"
            return Answer(503, {"status": "no view", "message": told, "control": control})
        view = {"version": directory.version, "age_seconds": round(directory.age(now), 1)}
        if self._is_view_too_old():
            told = "control has been away for longer than `max_view_age`"
            return Answer(503, {"status": "view too old", "message": told, "control": control, "view": view})
        return Answer(200, {"status": "ready", "control": control, "view": view})

    def _check_age(self) -> None:
        if self._is_view_too_old():
            raise Refusal.busy(503, "control has been away for longer than `max_view_age`", code="view_too_old")

    def _is_view_too_old(self) -> bool:
        bound = self._services.config.max_view_age
        directory = self._services.directory
        if bound is None or directory.version is None:
            return False
        return directory.age(self._services.loop.time()) > bound.total_seconds()


def _control_state(directory: Directory, now: float) -> dict[str, object]:
    """`up`, `impaired` when control itself says what it lacks, or `away`, and since when."""
    problems = list(directory.control.problems)
    if directory.away_since is not None:
        return {"state": "away", "for_seconds": round(now - directory.away_since, 1)}
    return {"state": "impaired", "problems": problems} if problems else {"state": "up"}


def _only(head: RequestHead, method: bytes) -> None:
    if head.method != method:
        text = f"use {method.decode()} here"
        raise Refusal(405, text, code="method_not_allowed", headers={"Allow": method.decode()})


def _shown(entry: ModelEntry) -> dict[str, object]:
    return {"id": entry.name, "object": "model", "created": entry.created, "owned_by": entry.owned_by}
