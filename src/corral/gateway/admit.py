"""Admission of a request: its API key, the model it names, and the fair queue for requests that have to wait.

Reads the body only as far as routing needs. Everything else in it is passed on as the client wrote it.
"""

from collections import deque
from hmac import compare_digest
from typing import Final, Generic, TypeVar

import msgspec

from corral.base.clock import Clock
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.gateway.answers import GatewayRefusal
from corral.gateway.forms import model_in_form
from corral.gateway.head import RequestHead
from corral.gateway.view import Directory
from corral.wire.keys import IMPLIED, Scope, hash_secret
from corral.wire.view import KeyEntry

_MAX_KEY: Final = 512
_MAX_NAME: Final = 512
_SHORT: Final = 16
"""A list longer than this many bytes is not checked for being empty."""
_LIST: Final = ord("[")
_TEXT: Final = ord('"')
_LONGEST_NUMBER: Final = 1024
_SHOWN: Final = 20
"""How many characters of a number an error message repeats."""
_ABSENT: Final = msgspec.Raw()
_NULL: Final = msgspec.Raw(b"null")
_HOTTEST: Final = 2
"""OpenAI's own limit of `temperature`."""
_OPENING: Final = {
    needed: frozenset(scope.value for scope, implied in IMPLIED.items() if needed in implied) for needed in Scope
}
"""For each scope, the key scopes that grant it."""


def admit_key(directory: Directory, head: RequestHead, clock: Clock, *, scope: Scope = Scope.INFERENCE) -> KeyEntry:
    """Return the request's key, which is valid now and has this scope. Raise `GatewayRefusal` otherwise.

    Keys are looked up by their hash, so the duration of the lookup reveals nothing about the key.
    """
    if directory.version is None:
        raise GatewayRefusal.busy(503, "the gateway has not heard from control yet", code="no_view")
    entry = valid_key(directory, head, clock)
    if _OPENING[scope].isdisjoint(entry.scopes):
        raise GatewayRefusal(403, f"this API key may not do that; it needs the scope {scope}", code="missing_scope")
    return entry


def valid_key(directory: Directory, head: RequestHead, clock: Clock) -> KeyEntry:
    """Return the request's key, which is valid now, with any scope. Raise `GatewayRefusal` otherwise."""
    hash = head.key_hash or _hash_of_key(head)
    entry = directory.find_key(hash)
    if entry is None or not compare_digest(entry.hash, hash):
        raise _denied("this API key is not valid", "invalid_api_key")
    if entry.expires_at is not None and clock.now().timestamp() >= entry.expires_at:
        raise _denied("this API key has expired", "expired_api_key")
    return entry


def _hash_of_key(head: RequestHead) -> str:
    if not head.key:
        raise _denied("an API key is required: send it as `Authorization: Bearer …`", "missing_api_key")
    if len(head.key) > _MAX_KEY:
        raise _denied("this API key is not valid", "invalid_api_key")
    head.key_hash = hash_secret(head.key)
    return head.key_hash


def _denied(message: str, code: str) -> GatewayRefusal:
    return GatewayRefusal(401, message, code=code, headers={"WWW-Authenticate": "Bearer"})


class RequestFields(msgspec.Struct, gc=False):
    """The fields of a request body that the gateway looks at, undecoded.

    Clients decide how large the values are, so nothing else of the body is decoded into objects.
    """

    model: msgspec.Raw = _ABSENT
    messages: msgspec.Raw = _ABSENT
    prompt: msgspec.Raw = _ABSENT
    temperature: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT
    functions: msgspec.Raw = _ABSENT
    function_call: msgspec.Raw = _ABSENT
    modalities: msgspec.Raw = _ABSENT
    max_tokens: msgspec.Raw = _ABSENT
    max_completion_tokens: msgspec.Raw = _ABSENT
    dimensions: msgspec.Raw = _ABSENT
    echo: msgspec.Raw = _ABSENT
    suffix: msgspec.Raw = _ABSENT
    best_of: msgspec.Raw = _ABSENT

    def named(self) -> str:
        """Return the name of the requested model. Raise `GatewayRefusal` when the body has none."""
        if self.model is _ABSENT or self.model == _NULL:
            return _named("")
        if memoryview(self.model)[0] != _TEXT:
            raise GatewayRefusal(400, "`model` must be a string", code="invalid_type", param="model")
        try:
            return _named(_text_decoder.decode(self.model))
        except UNREADABLE_JSON as error:
            raise _not_json(error) from None

    def needs_care(self) -> bool:
        """Whether the request uses a feature that some engines ignore silently or answer wrongly."""
        return (
            self.tools is not _ABSENT
            or self.functions is not _ABSENT
            or (self.max_tokens is not _ABSENT and _number(self.max_tokens) == 0)
            or (self.max_completion_tokens is not _ABSENT and _number(self.max_completion_tokens) == 0)
            or (self.dimensions is not _ABSENT and self.dimensions != _NULL)
            or (self.echo is not _ABSENT and self.echo != _NULL)
            or (self.suffix is not _ABSENT and self.suffix != _NULL)
            or (self.best_of is not _ABSENT and self.best_of != _NULL)
            or (self.modalities is not _ABSENT and self.modalities != _NULL)
            or (self.function_call is not _ABSENT and self.function_call != _NULL)
            or (self.prompt is not _ABSENT and memoryview(self.prompt)[0] == _LIST)
        )

    def check(self) -> None:
        """Raise `GatewayRefusal` for values that no model can serve but some engines accept."""
        if 0 < len(self.messages) <= _SHORT and bytes(self.messages).translate(None, b" \t\r\n") == b"[]":
            raise GatewayRefusal(400, "`messages` must not be empty", code="invalid_value", param="messages")
        heat = None if self.temperature is _ABSENT else _number(self.temperature)
        if heat is not None and not 0 <= heat <= _HOTTEST:
            written = bytes(self.temperature).decode()[:_SHOWN]
            text = f"`temperature` must be between 0 and {_HOTTEST}, and is {written}"
            raise GatewayRefusal(400, text, code="invalid_value", param="temperature")


def _number(value: msgspec.Raw) -> float | None:
    """Return the number, or None when it is not one or is implausibly long; the engine judges those."""
    if value == _NULL or len(value) > _LONGEST_NUMBER:
        return None
    try:
        return float(bytes(value))
    except ValueError:
        return None


_decoder: Final = msgspec.json.Decoder(RequestFields)
_text_decoder: Final = msgspec.json.Decoder(str)


def asked_in_json(body: bytes) -> RequestFields:
    """Read the routing fields of a JSON body. Raise `GatewayRefusal` when it cannot be read."""
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError:
        raise GatewayRefusal(400, "the body must be a JSON object", code="invalid_body") from None
    except UNREADABLE_JSON as error:
        raise _not_json(error if body else "it is empty") from None


def _not_json(why: object) -> GatewayRefusal:
    return GatewayRefusal(400, f"the body is not valid JSON: {why}", code="invalid_json")


def asked_in_form(head: RequestHead, body: bytes) -> RequestFields:
    """Read the routing fields of a multipart form body."""
    return RequestFields(model=msgspec.Raw(msgspec.json.encode(model_in_form(head.lines, body))))


def _named(model: str) -> str:
    if not model:
        raise GatewayRefusal(400, "`model` is missing: name the model to ask", code="missing_model", param="model")
    if len(model) > _MAX_NAME:
        raise GatewayRefusal(404, "there is no model with such a long name", code="model_not_found", param="model")
    return model


W = TypeVar("W")


class FairQueue(Generic[W]):
    """Waiters in order of arrival, with owners taking turns: an owner with many requests does not delay the others."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[W]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, owner: str, waiter: W) -> None:
        self._lines.setdefault(owner, deque()).append(waiter)

    def first(self) -> W | None:
        return next(iter(self._lines.values()))[0] if self._lines else None

    def pop(self) -> W:
        """Remove and return the first waiter. Its owner moves to the end of the line."""
        owner, line = next(iter(self._lines.items()))
        waiter = line.popleft()
        del self._lines[owner]
        if line:
            self._lines[owner] = line
        return waiter

    def remove(self, owner: str, waiter: W) -> None:
        """Remove a waiter; do nothing when it is not in the queue."""
        line = self._lines.get(owner)
        if line is not None and waiter in line:
            line.remove(waiter)
            if not line:
                del self._lines[owner]

    def all(self) -> list[W]:
        return [waiter for line in self._lines.values() for waiter in line]
