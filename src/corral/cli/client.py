"""A client of the admin API. Every way in which a call can fail is one sentence that says what to do.

Plain `http.client`: a command makes a call or two, and an asynchronous client would take longer to import than they
take to answer.
"""

import http.client
import json
import ssl
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from corral.base.errors import AccessDenied, CorralError, NotFound, PeerRefused, PeerUnavailable
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.base.values import PartlyPrinted
from corral.base.words import printable

if TYPE_CHECKING:
    from datetime import datetime

T = TypeVar("T")
Query = Iterable[tuple[str, str]]
MAX_ANSWER: Final = 64 * 1024 * 1024
_FAILURES: Final = (OSError, http.client.HTTPException, UnicodeError)
"""UnicodeError is what a host name raises that cannot be looked up at all."""
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
"""What OpenSSL, by its version, calls an answer in plain text."""


class FrontendTarget(PartlyPrinted, frozen=True, kw_only=True):
    """Where a frontend is, and how to call it."""

    unprinted = ("key",)

    url: str
    key: str
    """Empty when there is none; the frontend will say so."""
    origin: str
    """Where the URL comes from, for messages."""
    timeout: timedelta
    renewal: str = "set CORRAL_KEY or --key-file"
    """What to do when the key is refused, for messages."""
    alternative: str = ""
    """What to do when the key may not do this, for messages; empty where no other key is known."""


_HUB_AWAY: Final = "hub_unavailable"
"""The API's code for a hub, a registry or a server of files that did not answer the frontend."""


class Unreachable(PeerUnavailable):
    """No answer from the frontend."""

    def __init__(self, target: FrontendTarget, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"no answer from {target.url} (from {target.origin}): {reason}; is it running? `corral doctor` looks "
            "closer, `corral up` starts one"
        )


class FrontendFailed(PeerUnavailable):
    """The frontend answered that it cannot do it now (a status of 500 or more)."""

    def __init__(self, target: FrontendTarget, status: int, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{target.url} failed to answer ({status}): {reason}; try again, or see `corral doctor`")


class HubAway(PeerUnavailable):
    """The frontend works, and cannot reach the place that a model comes from."""

    def __init__(self, target: FrontendTarget, reason: str) -> None:
        super().__init__(
            f"{reason}; the frontend at {target.url} fetches models: let its machine reach that host, or name a mirror "
            "in its settings (hubs.hf_url, hubs.ollama_url, hubs.oci_url)"
        )


class ApiClient:
    """A client of one frontend. It opens a connection for each call: commands are short."""

    def __init__(self, target: FrontendTarget) -> None:
        self.target = target
        self.server_time: datetime | None = None
        """The frontend's clock at its last answer."""

    def get(self, path: str, answer: type[T], query: Query = (), *, patience: timedelta | None = None) -> T:
        """`patience` is the timeout, if longer than that of other calls."""
        return self._decoded(self._call("GET", path, query=query, patience=patience), answer)

    def post(
        self,
        path: str,
        answer: type[T],
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        patience: timedelta | None = None,
    ) -> T:
        """`patience` is the timeout, if longer than that of other calls."""
        return self._decoded(self._call("POST", path, body=body, headers=headers, patience=patience), answer)

    def patch(self, path: str, answer: type[T], body: object) -> T:
        return self._decoded(self._call("PATCH", path, body=body), answer)

    def put(self, path: str, answer: type[T], body: object, *, headers: Mapping[str, str] | None = None) -> T:
        return self._decoded(self._call("PUT", path, body=body, headers=headers), answer)

    def send(self, method: str, path: str, body: object) -> None:
        """Call a route that answers without a body."""
        self._call(method, path, body=body)

    def delete(self, path: str) -> bytes:
        """The body of the answer, which may be empty."""
        return self._call("DELETE", path)

    def delete_for(self, path: str, answer: type[T], *, headers: Mapping[str, str]) -> T:
        """Delete, and decode the answer."""
        return self._decoded(self._call("DELETE", path, headers=headers), answer)

    def stream(self, path: str, *, last_event: str = "", at_most: timedelta | None = None) -> Iterator[tuple[str, str]]:
        """Server-sent events as (id, data) until the frontend closes the stream; comments come as empty data.

        A silence of `at_most` counts as no answer.
        """
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_event} if last_event else {})
        yield from self._events(*self._send("GET", path, headers=headers, silence=at_most))

    def post_stream(self, path: str, body: object, *, patience: timedelta) -> Generator[tuple[str, str], None, None]:
        """Server-sent events in answer to a body. `patience` is the timeout, if longer than that of other calls."""
        headers = {"Accept": "text/event-stream"}
        yield from self._events(*self._send("POST", path, body=body, headers=headers, patience=patience))

    def _events(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> Iterator[tuple[str, str]]:
        try:
            if response.status != 200:
                raise self._refusal(response.status, response.read(MAX_ANSWER))
            yield from read_events(response)
        except _FAILURES as error:
            raise self._unreachable(error) from error
        finally:
            response.close()  # it may have the socket to itself, and then hangs up only here
            connection.close()

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: object = None,
        headers: Mapping[str, str] | None = None,
        patience: timedelta | None = None,
    ) -> bytes:
        encoded = urlencode(list(query))
        whole = f"{path}?{encoded}" if encoded else path
        connection, response = self._send(method, whole, body=body, headers=headers, patience=patience)
        try:
            content = response.read(MAX_ANSWER)
        except _FAILURES as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()
        if not 200 <= response.status < 300:
            raise self._refusal(response.status, content)
        return content

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        patience: timedelta | None = None,
        silence: timedelta | None = None,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """`patience` raises the timeout for the answer, `silence` lowers the timeout between its parts."""
        payload = None if body is None else msgspec.json.encode(body)
        parts = urlsplit(self.target.url)
        make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        with ExitStack() as stack:  # so that an interrupt hangs up as well
            connection = make(parts.hostname or "", parts.port, timeout=self.target.timeout.total_seconds())
            stack.callback(connection.close)
            try:
                connection.connect()
                if patience is not None:
                    connection.sock.settimeout(max(patience, self.target.timeout).total_seconds())
                connection.request(method, parts.path + path, body=payload, headers=self._headers(payload, headers))
                socket = connection.sock  # an answer may take it for itself
                response = connection.getresponse()
                if silence is not None:
                    socket.settimeout(min(silence, self.target.timeout).total_seconds())
            except _FAILURES as error:
                raise self._unreachable(error) from error
            stack.pop_all()
        try:
            self.server_time = parsedate_to_datetime(response.headers.get("Date", ""))
        except ValueError:
            self.server_time = None
        return connection, response

    def _headers(self, payload: bytes | None, more: Mapping[str, str] | None) -> dict[str, str]:
        headers = {"Accept": "application/json", **(more or {})}
        if payload is not None:
            headers["Content-Type"] = "application/json"
        if self.target.key:
            headers["Authorization"] = f"Bearer {self.target.key}"
        return headers

    def _decoded(self, content: bytes, answer: type[T]) -> T:
        try:
            return msgspec.json.decode(content, type=answer)
        except UNREADABLE_JSON as error:
            raise PeerRefused(
                f"{self.target.url} did not answer as a Corral frontend does; is the URL right? ({error})", status=200
            ) from error

    def _unreachable(self, error: Exception) -> "Unreachable":
        if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
            plain = f"http{self.target.url.removeprefix('https')}"
            return Unreachable(self.target, f"what listens there does not speak TLS, so try {plain}")
        return Unreachable(self.target, getattr(error, "strerror", None) or str(error) or type(error).__name__)

    def _refusal(self, status: int, content: bytes) -> CorralError:
        message = message_in(content) or http.client.responses.get(status, "an unknown status")
        if status == 401:
            hint = "its key is wrong, expired or revoked" if self.target.key else "no key was given"
            return AccessDenied(f"{self.target.url} refused the call: {hint}; {self.target.renewal}")
        if status == 403:
            alternative = f"; {self.target.alternative}" if self.target.alternative else ""
            return AccessDenied(f"{self.target.url} refused the call: {message}{alternative}")
        if status == 404:
            return NotFound(message)
        if status == 409 and (plan := _new_plan(content)):
            return PeerRefused(f"{message}:\n{plan}", status=status)
        if _code_in(content) == _HUB_AWAY:
            return HubAway(self.target, message)
        if status >= 500:
            return FrontendFailed(self.target, status, message)
        return PeerRefused(message, status=status)


def message_in(content: bytes) -> str:
    """The message in the body of an error, in any of the formats that errors have; empty when there is none."""
    error = _object_in(content).get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else ""


def _code_in(content: bytes) -> object:
    """The code in the body of an error of the API; None when there is none."""
    error = _object_in(content).get("error")
    return error.get("code") if isinstance(error, dict) else None


def _new_plan(content: bytes) -> str:
    """The plan of now in an answer that the plan which was seen is old; empty for another answer."""
    plan = _object_in(content).get("plan")
    text = plan.get("text") if isinstance(plan, dict) else None
    return "\n".join(map(printable, text.splitlines())) if isinstance(text, str) else ""


def _object_in(content: bytes) -> dict[str, object]:
    """The JSON object that a body is; an empty one for anything else."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def read_events(lines: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """Parse server-sent events. A comment, which only keeps the connection alive, is an event without data."""
    identity, data = "", list[str]()
    for raw in lines:
        line = raw.decode(errors="replace").rstrip("\r\n")
        if not line:
            if data:
                yield identity, "\n".join(data)
            data = []
        elif line.startswith(":"):
            yield "", ""
        else:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                data.append(value)
            elif name == "id":
                identity = value


def api_path(*parts: str) -> str:
    """A path of the native API, such as `/api/v1/nodes/ID/drain`; each part is quoted."""
    return "/".join(["/api/v1", *(quote(part, safe="") for part in parts)])
