"""What a backend is to the SDK."""

import socket
from collections.abc import Iterable
from dataclasses import dataclass, field

from corral_backend_sdk.messages import ModelOptions


class LoadFailed(Exception):
    """The model cannot be loaded, for the reason given: it reaches whoever asked for the model."""


class PortTaken(Exception):
    """Another program listens at a port that the process was promised. The SDK ends the process, as only one with
    other ports can load the model."""


class RequestRefused(Exception):
    """The request cannot be served as it is, for the reason given: it reaches the client."""


class NotOffered(Exception):
    """The model as it is loaded cannot do this, for the reason given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What the process was started with."""

    address: str
    """Where gRPC is served, `host:port`."""
    http_address: str = ""
    """Where the backend's own HTTP port shall be, if it was promised one: see corral.json."""
    front_address: str = ""
    """Where a second HTTP port shall be, for requests that need care, if it was promised one: see corral.json."""
    http_key: str = field(default="", repr=False)
    """The bearer key that the HTTP ports ask for."""
    model_name: str = ""
    """The name under which the HTTP port serves the model."""

    def check_ports(self) -> None:
        """Raise PortTaken if another program listens at a promised HTTP port. The worker looked before it started this
        process, and a load can come much later: files are brought first."""
        for address in filter(None, (self.http_address, self.front_address)):
            host, _, port = address.rpartition(":")
            host = host.strip("[]")
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((host, int(port)))
                    probe.listen(1)
                except OSError as error:
                    raise PortTaken(f"cannot listen at {address}: {error.strerror}") from error


class Backend:
    """One model in one process. Methods run in one event loop: long work belongs in threads.

    Besides these, a method of the contract is offered by defining it under its name in snake case: `predict`,
    `predict_stream` (an asynchronous generator), `embedding`, `tokenize_string`, `rerank`, `tts`, … It gets the request
    and gives the response. Of `predict` and `predict_stream` one is enough. What is not defined is UNIMPLEMENTED.

    The SDK calls one `load` or `free` at a time, and none while a request is being served. A cancelled method means
    that the client is gone.
    """

    name = "backend"

    def __init__(self, launch: Launch) -> None:
        self.launch = launch

    async def load(self, options: ModelOptions) -> str:
        """Load the model; return a word about it. Raise LoadFailed with a reason that helps."""
        raise NotImplementedError

    async def free(self) -> None:
        """Give everything back that `load` took. Called at the end of the process, too."""


def option_values(options: Iterable[str]) -> dict[str, str]:
    """The entries of `ModelOptions.Options`: `name:value`, or a bare name, which means `true`."""
    pairs = (entry.partition(":") for entry in options)
    return {name.strip(): value.strip() if colon else "true" for name, colon, value in pairs}
