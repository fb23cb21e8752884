"""The other end of the gRPC client's connections: h2, an independent and strict server side of HTTP/2.

Nothing goes through a socket: what one end writes is read by the other at once.
"""

from collections.abc import Callable
from typing import Any, Final

import h2.config
import h2.connection
import h2.events
import h2.settings

from corral.rpc.grpc_client.call import Call
from corral.rpc.grpc_client.connection import Http2Connection
from corral.rpc.grpc_client.keepalive import NO_KEEPALIVE, Keepalive

HEAD: Final = b"\x20\x83\x86\x84\x01\x01x"
"""A header block: POST, http, path / and authority x, without a table."""
OPENING: Final = [(":status", "200"), ("content-type", "application/grpc")]
SUCCESS: Final = [("grpc-status", "0")]


def message(content: bytes) -> bytes:
    """A gRPC message with its prefix."""
    return b"\0" + len(content).to_bytes(4) + content


class Http2Transport:
    """A transport double. `is_stuck` keeps written data, like a socket whose peer does not read."""

    def __init__(self, protocol: Http2Connection, hear: Callable[[bytes], object]) -> None:
        self.hear = hear
        self.closed = False
        self.is_stuck = False
        self.buffer = bytearray()
        self.high = 64 * 1024
        self._protocol = protocol
        self._is_paused = False

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def write(self, data: bytes) -> None:
        assert not self.closed
        if not self.is_stuck:
            self.hear(data)
            return
        self.buffer += data
        if len(self.buffer) > self.high and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def unstick(self) -> None:
        """Let the peer read again."""
        self.is_stuck = False
        data = bytes(self.buffer)
        self.buffer.clear()
        self.hear(data)
        if self._is_paused:
            self._is_paused = False
            self._protocol.resume_writing()

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return len(self.buffer)


class Http2Peer:
    """h2 as the server of one connection."""

    def __init__(self, keepalive: Keepalive = NO_KEEPALIVE, **settings: int) -> None:
        codes = {getattr(h2.settings.SettingCodes, name.upper()): value for name, value in settings.items()}
        self.http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.http.local_settings = h2.settings.Settings(client=False, initial_values=codes)
        self.events: list[Any] = []
        self.connection = Http2Connection(keepalive)
        self.wire = Http2Transport(self.connection, lambda data: self.events.extend(self.http.receive_data(data)))
        self.http.initiate_connection()
        self._announced = 1
        """Frames of settings that were sent."""
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]
        self.speak()

    def speak(self, pieces_of: int = 2**20) -> None:
        """Have the connection read what h2 wants to send."""
        data = self.http.data_to_send()
        for begin in range(0, len(data), pieces_of):
            self.connection.data_received(data[begin : begin + pieces_of])

    def call(self, body: bytes = b"request") -> Call:
        """Begin a call with one request."""
        return self.connection.begin(HEAD, message(body))

    def stream(self) -> Call:
        """Begin a call with a stream of requests."""
        return self.connection.begin(HEAD, b"")

    def answer(self, call: Call, *contents: bytes, trailers: list[tuple[str, str]] | None = None) -> None:
        """A whole answer, to be sent next."""
        self.http.send_headers(call.number, OPENING)
        for content in contents:
            self.http.send_data(call.number, message(content))
        self.http.send_headers(call.number, trailers or SUCCESS, end_stream=True)

    def allow(self, call: Call, count: int) -> None:
        """Enlarge both windows that limit a call's requests, and say so."""
        self.http.increment_flow_control_window(count)
        self.http.increment_flow_control_window(count, call.number)
        self.speak()

    def change_setting(self, code: h2.settings.SettingCodes, value: int) -> None:
        """Announce a setting, unless an earlier one is not acknowledged yet.

        h2 takes the acknowledgement of one for that of all, and then refuses what was allowed when it was sent.
        """
        if len(self.heard(h2.events.SettingsAcknowledged)) == self._announced:
            self._announced += 1
            self.http.update_settings({code: value})

    def heard(self, kind: type[Any]) -> list[Any]:
        """Return the received events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def body_of(self, call: Call) -> bytes:
        """All that was received of a call's requests."""
        return b"".join(event.data for event in self.heard(h2.events.DataReceived) if event.stream_id == call.number)


class RawPeer(Http2Peer):
    """Takes anything: what the tests make it send is not h2's."""

    def __init__(self, keepalive: Keepalive = NO_KEEPALIVE) -> None:
        super().__init__(keepalive)
        self.sent = bytearray()
        """Bytes that our side sent."""
        self.wire.hear = self.sent.extend
