"""What the commands about images share: logins and the network, and how sizes are told."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from corral.cli.options import settings_options, sources, warn

if TYPE_CHECKING:
    from corral.imaging.push import PushResult
    from corral.oci.config import ImagesConfig

F = TypeVar("F", bound=Callable[..., Any])
_SETTINGS: Final = frozenset({"registry_auth_file", "plain_registries", "pull_parallel"})


def registry_options(function: F) -> F:
    """Adds the settings by which registries are spoken to."""
    return settings_options(images=_SETTINGS)(function)


def images() -> "ImagesConfig":
    """What the running command was told about registries."""
    from corral.oci.config import ImagesConfig
    from corral.processes.configs import images_config
    from corral.processes.settings_sources import resolve

    found = sources()
    config = images_config(resolve(ImagesConfig, found), found.environment)
    warn(found.warnings)
    return config


def pushed_sentence(result: "PushResult") -> str:
    from corral.base.sizes import format_size

    spared = f", {format_size(result.spared_bytes)} were there" if result.spared_bytes else ""
    return f"Pushed {result.reference}: {format_size(result.sent_bytes)} sent{spared}."
