"""What every command that talks to a frontend begins with."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from corral.cli.options import settings_options
from corral.processes.settings_table import ClientSettings

if TYPE_CHECKING:
    from corral.cli.client import Client

F = TypeVar("F", bound=Callable[..., Any])


def connected(function: F) -> F:
    """Adds the settings of a client."""
    return settings_options(ClientSettings)(function)


def open_client() -> "Client":
    """A client of the frontend that the running command means."""
    from corral.cli.client import Client
    from corral.cli.frontend_target import frontend_target

    return Client(frontend_target())
