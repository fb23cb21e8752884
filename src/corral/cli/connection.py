"""What every command that talks to a frontend begins with."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from corral.cli.options import settings_options

if TYPE_CHECKING:
    from corral.cli.client import ApiClient

F = TypeVar("F", bound=Callable[..., Any])


def connected(function: F) -> F:
    """Adds the settings of a client."""
    return settings_options(client=None)(function)


def open_client() -> "ApiClient":
    """A client of the frontend that the running command means."""
    from corral.cli.client import ApiClient
    from corral.cli.frontend_target import frontend_target

    return ApiClient(frontend_target())
