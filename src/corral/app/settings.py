"""Settings of every process, read once at its start. The only reader of the environment.

The table of settings is in `settings_table/`, the rules of precedence in `settings_sources.py`. Here the two meet the
real environment, and settings become what the processes are configured with.
"""

import math
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from corral.app.settings_kinds import HTTP_URL, PATH, hide_password
from corral.app.settings_sources import (
    CONFIG_FLAG,
    CONFIG_VARIABLE,
    ConfigFile,
    Sources,
    did_you_mean,
    handed_on,
    known_variables,
    open_secrets,
    read_config_file,
    resolve,
    settings_of,
    unknown_variables,
)
from corral.app.settings_table import (
    GROUPS,
    ClientSettings,
    FrontendSettings,
    GallerySettings,
    GatewaySettings,
    ImageSettings,
    LogSettings,
    UpSettings,
    WorkerSettings,
)
from corral.base.errors import InvalidInput, SettingInvalid
from corral.base.retry import Backoff

if TYPE_CHECKING:
    from corral.agent.config import WorkerConfig
    from corral.agent.install_orders import KeepPrevious
    from corral.app.this_machine import MachineConfig
    from corral.bus.config import BusConfig
    from corral.bus.minting import Minter
    from corral.control.config import ControlConfig
    from corral.domain.load_job import LoadPolicy
    from corral.files.storage import StorageConfig
    from corral.galleries.config import GalleriesConfig
    from corral.gateway.config import GatewayConfig
    from corral.images.config import ImagesConfig

WORKER_PYTHON: Final = "CORRAL_WORKER_PYTHON"
_FIRST_RETRY: Final = timedelta(milliseconds=250)

__all__ = [
    "MACHINE_SETTINGS",
    "ClientSettings",
    "FrontendSettings",
    "GallerySettings",
    "GatewaySettings",
    "ImageSettings",
    "LogSettings",
    "UpSettings",
    "WorkerSettings",
    "backend_environment",
    "child_environment",
    "control_config",
    "galleries_config",
    "gateway_config",
    "gather",
    "images_config",
    "keep_previous",
    "machine_config",
    "own_command",
    "resolve",
    "variable_warnings",
    "worker_config",
]


def gather(flags: Mapping[str, str], environment: Mapping[str, str] | None = None) -> Sources:
    """Bring all sources together and check the file; the environment is this process's own unless one is given."""
    variables = dict(os.environ if environment is None else environment)
    file = _config_file(flags, variables)
    sources = Sources(flags=flags, environment=variables, file=file)
    sources.warnings.extend(open_secrets(file, GROUPS))
    return sources


def _config_file(flags: Mapping[str, str], environment: Mapping[str, str]) -> ConfigFile:
    if CONFIG_FLAG in flags:
        text, origin = flags[CONFIG_FLAG], f"the flag {CONFIG_FLAG}"
    elif environment.get(CONFIG_VARIABLE):
        text, origin = environment[CONFIG_VARIABLE], f"the environment variable {CONFIG_VARIABLE}"
    else:
        return ConfigFile()
    try:
        path = PATH.read(text)
    except ValueError as error:
        raise SettingInvalid("config", f"{text!a} from {origin} cannot be used; allowed is a path") from error
    return read_config_file(path, GROUPS, origin=origin)


def variable_warnings(sources: Sources) -> list[str]:
    """One sentence for each variable that looks like ours and means nothing. No error: platforms inject their own."""
    known = sorted(known_variables(GROUPS))
    return [
        f"the environment variable {name} is unknown and ignored{did_you_mean(name, known)}"
        for name in unknown_variables(sources.environment, GROUPS)
    ]


def child_environment(sources: Sources, changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a child process is started with: the same settings, with some of them changed."""
    return {**handed_on(sources, GROUPS), **(changes or {})}


def own_command(*arguments: str) -> list[str]:
    """How to start another process of this very program, wherever it is installed."""
    return [sys.executable, "-P", "-m", "corral", *arguments]


def gateway_config(settings: GatewaySettings, *, key: str = "") -> "GatewayConfig":
    """What a gateway process is configured with; a key that was handed over wins over the setting."""
    from corral.app.tls import client_tls, server_tls
    from corral.gateway.config import GatewayConfig, Limits, TimeOuts

    control_key = key or settings.key
    if not control_key:
        raise SettingInvalid("key", "a key with the scope gateway is needed: set CORRAL_GATEWAY_KEY")
    is_secure = settings.control.startswith("https://")
    return GatewayConfig(
        host=settings.host,
        port=settings.port,
        control_url=_control_url(settings.control),
        control_key=control_key,
        control_tls=client_tls(settings.control_ca) if is_secure else None,
        tls=server_tls(settings.tls_cert, settings.tls_key),
        plain_port=settings.plain_port,
        expose_node=settings.expose_node,
        time_outs=TimeOuts(
            load=settings.load_wait.total_seconds() or math.inf,
            queue=settings.queue_wait.total_seconds(),
            first_byte=settings.first_byte_timeout.total_seconds(),
            idle=settings.idle_timeout.total_seconds(),
        ),
        limits=Limits(body=settings.max_request, bodies=max(Limits().bodies, 2 * settings.max_request)),
        max_view_age=settings.max_view_age,
        reuse_port=settings.reuse_port,
    )


def _control_url(text: str) -> str:
    """Nothing but where to dial: a path, a query or a login would be dropped silently."""
    if text.startswith("unix:/"):
        return text
    try:
        return HTTP_URL.read(text if urlsplit(text).path in ("", "/") else "")
    except ValueError:
        allowed = "http://HOST:PORT or https://HOST:PORT of a frontend, or unix: and the full path of a socket"
        raise SettingInvalid("control", f"{hide_password(text)!r} cannot be used; allowed is {allowed}") from None


def control_config(settings: FrontendSettings, *, gateway_key: str = "") -> "ControlConfig":
    """What the control process is configured with."""
    from corral.control.config import ControlConfig
    from corral.domain.intent import IntentPolicy
    from corral.domain.node import LivenessPolicy
    from corral.domain.upgrades import UpgradePolicy

    if settings.offline_after <= settings.unhealthy_after:
        raise SettingInvalid("offline_after", f"must be more than unhealthy_after, which is {settings.unhealthy_after}")
    return ControlConfig(
        data=settings.data,
        bus=_bus_config(settings),
        minter=_minter(settings),
        database_url=settings.database_url,
        host=settings.host,
        port=settings.port,
        instance_id=settings.instance_id,
        secrets_key=settings.secrets_key,
        secrets_key_file=settings.secrets_key_path,
        registration_token=settings.registration_token,
        trusted_registration_token=settings.trusted_registration_token,
        auto_approve=settings.auto_approve,
        credentials_file=settings.credentials_file,
        metrics_public=settings.metrics_public,
        liveness=LivenessPolicy(unhealthy_after=settings.unhealthy_after, offline_after=settings.offline_after),
        brake_share=settings.brake_percent / 100,
        event_retention=settings.event_retention,
        operation_retention=settings.operation_retention,
        upgrades=UpgradePolicy(period=settings.upgrade_check_period, is_automatic=settings.auto_upgrade_backends),
        max_body=settings.max_body,
        models=settings.models,
        threads=settings.threads,
        loads=_load_policy(settings),
        intents=IntentPolicy(
            install=settings.install_timeout, upgrade=settings.upgrade_timeout, delete=settings.delete_timeout
        ),
        socket=settings.control_socket,
        gateway_key=gateway_key,
    )


def _minter(settings: FrontendSettings) -> "Minter | None":
    from corral.bus.minting import Minter

    if not settings.nats_account_seed:
        return None
    try:
        return Minter(settings.nats_account_seed, settings.nats_worker_jwt_ttl)
    except InvalidInput as error:
        raise SettingInvalid("nats_account_seed", error.problem) from None


def _load_policy(settings: FrontendSettings) -> "LoadPolicy":
    from corral.domain.load_job import LoadPolicy

    fixed = settings.load_timeout
    if fixed is None:
        return LoadPolicy(install=settings.install_timeout)
    return LoadPolicy(install=settings.install_timeout, load=fixed, load_per_gib=timedelta(0), longest_load=fixed)


def worker_config(
    settings: WorkerSettings, environment: Mapping[str, str], galleries: GallerySettings | None = None
) -> "WorkerConfig":
    """What a worker process is configured with; the environment is what its backends are started in."""
    from corral.agent.addresses import AddressConfig
    from corral.agent.config import (
        DepartureConfig,
        FilesConfig,
        FrontendConfig,
        NodeConfig,
        SupervisionConfig,
        WorkerConfig,
    )

    if settings.require_token and not settings.registration_token:
        raise SettingInvalid("registration_token", "is needed, since require_token is set")
    return WorkerConfig(
        frontend=FrontendConfig(
            urls=settings.register_to,
            registration_token=settings.registration_token,
            backoff=Backoff(first=min(_FIRST_RETRY, settings.registration_retry), cap=settings.registration_retry),
        ),
        bus=_bus_config(settings),
        data_path=settings.data,
        models_path=settings.models or settings.data / "models",
        backends_path=settings.backends or settings.data / "backends",
        system_backends=(settings.system_backends, *_shipped_backends(galleries)),
        backend_environment=backend_environment(environment),
        files=FilesConfig(
            staging_path=settings.staging,
            retention=settings.file_retention,
            stall_timeout=settings.file_stall_timeout,
        ),
        storage=_storage_config(settings),
        node=NodeConfig(
            name=settings.name,
            labels=settings.labels,
            max_replicas_per_model=max(settings.max_replicas_per_model, 1),
            vram_budget=settings.vram_budget,
            capability=settings.capability,
            capability_run_file=settings.capability_run_file,
        ),
        addresses=AddressConfig(
            addr=settings.address,
            serve_addr=settings.serve_address,
            grpc_max_port=settings.max_port,
            advertise_addr=settings.advertise_address,
            http_addr=settings.http_address,
            advertise_http_addr=settings.advertise_http_address,
        ),
        heartbeat_interval=settings.heartbeat_interval,
        supervision=SupervisionConfig(unused_after=settings.unused_after),
        departure=DepartureConfig(drain_timeout=settings.drain_timeout),
    )


def galleries_config(settings: GallerySettings) -> "GalleriesConfig":
    """How galleries are read, by whichever process."""
    from corral.galleries.config import GalleriesConfig

    return GalleriesConfig(
        sources=settings.backend_galleries,
        builtin=settings.builtin,
        cache=settings.cache,
        max_age=settings.max_age,
        timeout=settings.timeout,
        max_bytes=settings.max_size,
    )


def images_config(settings: ImageSettings, environment: Mapping[str, str]) -> "ImagesConfig":
    """How images are fetched and unpacked, by whichever process installs."""
    from corral.images.auth import config_files, read_auths
    from corral.images.config import ImagesConfig
    from corral.images.limits import UnpackLimits
    from corral.images.network import Network, proxies_of

    stated = settings.registry_auth_file
    return ImagesConfig(
        credentials=read_auths(settings.registry_auth) if settings.registry_auth else (),
        auth_files=(stated,) if stated is not None else config_files(environment),
        network=Network(plain_hosts=settings.plain_registries, **proxies_of(environment)),
        limits=UnpackLimits(
            entries=settings.unpack_max_entries,
            total_bytes=settings.unpack_max_bytes,
            ratio=settings.unpack_max_ratio,
        ),
        require_integrity=settings.require_backend_integrity,
        trusted_root=settings.trusted_root_file,
        parallel=settings.pull_parallel,
        keep_layers=settings.keep_layers,
        niceness=settings.pull_niceness,
        environment=environment,
    )


def keep_previous(settings: ImageSettings) -> "KeepPrevious":
    """Whether one can go back to the version of a backend before."""
    from corral.agent.install_orders import KeepPrevious

    return KeepPrevious(is_wanted=settings.keep_previous, free_bytes=settings.previous_min_free)


MACHINE_SETTINGS: Final = frozenset({"capability", "capability_run_file", "data", "backends", "system_backends"})
"""Of a worker's settings those that say which backends are on this machine, and which would fit it."""


def machine_config(sources: Sources) -> "MachineConfig":
    """This machine as a worker with the same settings would see it; what else a worker needs is not asked for."""
    from corral.agent.hardware import CapabilityRule
    from corral.app.this_machine import MachineConfig

    others = frozenset(one.name for one in settings_of(WorkerSettings)) - MACHINE_SETTINGS
    settings = resolve(WorkerSettings, sources, without=others)
    return MachineConfig(
        capability=CapabilityRule(forced=settings.capability, run_file=settings.capability_run_file),
        backends=settings.backends or settings.data / "backends",
        system_backends=(settings.system_backends, *_shipped_backends(resolve(GallerySettings, sources))),
    )


def _storage_config(settings: WorkerSettings) -> "StorageConfig | None":
    from corral.files.storage import StorageConfig

    if not settings.storage_url:
        return None
    _need_both("storage_access_key", settings.storage_access_key, "storage_secret_key", settings.storage_secret_key)
    return StorageConfig(
        url=settings.storage_url,
        bucket=settings.storage_bucket,
        region=settings.storage_region,
        access_key=settings.storage_access_key,
        secret_key=settings.storage_secret_key,
    )


def backend_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The worker's own environment without what could give a backend, or its log, access to the fleet.

    The worker's own Python is named for backends that bring packages and find no other that fits.
    """
    own = [one for group in GROUPS for one in settings_of(group) if one.secret or one.kind.may_hold_password]
    hidden = {variable for one in own for variable in one.env}
    passed_on = {name: value for name, value in environment.items() if name not in hidden}
    return {WORKER_PYTHON: sys.executable, **passed_on}


def _shipped_backends(galleries: GallerySettings | None) -> tuple[Path, ...]:
    """Where Corral's own backends lie in a checkout, unless there are images of them to install."""
    if galleries is not None and galleries.builtin is not None:
        return ()
    folder = Path(__file__).absolute().parents[3] / "backends"
    return (folder,) if (folder / "sdk").is_dir() else ()


def shipped_installers() -> tuple[Path, ...]:
    """Where uv may lie that is not on the PATH: beside this Python, and where a checkout's set-up puts it."""
    checkout = Path(__file__).absolute().parents[3]
    return (Path(sys.prefix) / "bin" / "uv", *sorted(checkout.glob(".build/uv-*/bin/uv")))


def _bus_config(settings: FrontendSettings | WorkerSettings) -> "BusConfig":
    from corral.bus.config import BusConfig

    _need_both("nats_jwt", settings.nats_jwt, "nats_seed", settings.nats_seed)
    _need_both("nats_tls_cert", settings.nats_tls_cert, "nats_tls_key", settings.nats_tls_key)
    return BusConfig(
        url=settings.nats_url,
        jwt=settings.nats_jwt,
        seed=settings.nats_seed,
        tls_ca=settings.nats_tls_ca,
        tls_cert=settings.nats_tls_cert,
        tls_key=settings.nats_tls_key,
    )


def _need_both(one: str, one_value: object, other: str, other_value: object) -> None:
    if one_value and not other_value:
        raise SettingInvalid(other, f"is needed beside {one}")
    if other_value and not one_value:
        raise SettingInvalid(one, f"is needed beside {other}")
