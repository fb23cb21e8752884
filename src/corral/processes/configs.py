"""Builds the configuration of each process from its resolved settings.

Contradictions between settings are refused here; a single invalid value is refused by its kind. A gateway's
configuration is built in `gateway.py`, so that a gateway imports no more than its own.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from corral.base.errors import InvalidInput, SettingInvalid
from corral.bus.config import BusConfig
from corral.files.storage import StorageConfig
from corral.frontend.config import ControlConfig
from corral.galleries.config import GalleriesConfig
from corral.oci.config import ImagesConfig
from corral.oci.limits import proxies_of
from corral.processes.settings import backend_environment
from corral.worker.config import WorkerConfig

if TYPE_CHECKING:
    from corral.bus.credentials import Minter


def control_config(settings: ControlConfig, *, gateway_key: str = "") -> ControlConfig:
    """Build the configuration of the control process."""
    liveness = settings.liveness
    if liveness.offline_after <= liveness.unhealthy_after:
        raise SettingInvalid("offline_after", f"must be more than unhealthy_after, which is {liveness.unhealthy_after}")
    _check_bus(settings.bus)
    return replace(
        settings,
        minter=_minter(settings),
        loads=replace(settings.loads, install=settings.intents.install),
        gateway_key=gateway_key,
    )


def _minter(settings: ControlConfig) -> "Minter | None":
    if not settings.nats_account_seed:
        return None
    from corral.bus.credentials import Minter

    try:
        return Minter(settings.nats_account_seed, settings.nats_worker_jwt_ttl)
    except InvalidInput as error:
        raise SettingInvalid("nats_account_seed", error.problem) from None


def worker_config(
    settings: WorkerConfig, environment: Mapping[str, str], galleries: GalleriesConfig | None = None
) -> WorkerConfig:
    """Build the configuration of a worker; its backends are started in `environment`."""
    frontend = settings.frontend
    required_by = "require_token" if frontend.require_token else "require_auth" if frontend.require_auth else ""
    if required_by and not frontend.registration_token:
        raise SettingInvalid("registration_token", f"is needed, since {required_by} is set")
    _check_bus(settings.bus)
    return replace(
        settings,
        system_backends=(*settings.system_backends, *shipped_backends(galleries)),
        backend_environment=backend_environment(environment),
        storage=_checked_storage(settings.storage),
    )


def _checked_storage(storage: StorageConfig | None) -> StorageConfig | None:
    if storage is None or not storage.url:
        return None
    _need_both("storage_access_key", storage.access_key, "storage_secret_key", storage.secret_key)
    return storage


def _check_bus(bus: BusConfig) -> None:
    _need_both("nats_jwt", bus.jwt, "nats_seed", bus.seed)
    _need_both("nats_tls_cert", bus.tls_cert, "nats_tls_key", bus.tls_key)


def _need_both(name: str, one_value: object, other: str, other_value: object) -> None:
    """Refuse half of a pair of settings; the error names the other half."""
    if one_value and not other_value:
        raise SettingInvalid(other, f"is needed beside {name}")
    if other_value and not one_value:
        raise SettingInvalid(name, f"is needed beside {other}")


def images_config(settings: ImagesConfig, environment: Mapping[str, str]) -> ImagesConfig:
    """Build the configuration for images: proxies of the environment, which pullers are also started in."""
    network = replace(settings.network, **proxies_of(environment))
    return replace(settings, network=network, environment=environment)


def shipped_backends(galleries: GalleriesConfig | None) -> tuple[Path, ...]:
    """Return the directories of Corral's own backends in a checkout, unless there are images of them."""
    if galleries is not None and galleries.builtin is not None:
        return ()
    folder = Path(__file__).absolute().parents[3] / "backends"
    return (folder,) if (folder / "sdk").is_dir() else ()


def shipped_installers() -> tuple[Path, ...]:
    """Return places where uv may be besides the PATH: beside this Python, and where a checkout's setup puts it."""
    checkout = Path(__file__).absolute().parents[3]
    return (Path(sys.prefix) / "bin" / "uv", *sorted(checkout.glob(".build/uv-*/bin/uv")))
