"""What a worker process is configured with."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from corral.base.errors import SettingInvalid
from corral.base.retry import Backoff
from corral.files.storage import StorageConfig
from corral.processes.configs.shared import bus_config, need_both
from corral.processes.own_program import shipped_backends
from corral.processes.settings import backend_environment
from corral.processes.settings_table import GallerySettings, ImageSettings, WorkerSettings
from corral.worker.config import (
    DepartureConfig,
    FilesConfig,
    FrontendConfig,
    NodeConfig,
    SupervisionConfig,
    WorkerConfig,
)
from corral.worker.installing.orders import KeepPrevious
from corral.worker.membership.addresses import AddressConfig

_FIRST_RETRY: Final = timedelta(milliseconds=250)


def worker_config(
    settings: WorkerSettings, environment: Mapping[str, str], galleries: GallerySettings | None = None
) -> WorkerConfig:
    """What a worker process is configured with; the environment is what its backends are started in."""
    required_by = "require_token" if settings.require_token else "require_auth" if settings.require_auth else ""
    if required_by and not settings.registration_token:
        raise SettingInvalid("registration_token", f"is needed, since {required_by} is set")
    return WorkerConfig(
        frontend=FrontendConfig(
            urls=settings.register_to,
            registration_token=settings.registration_token,
            backoff=Backoff(first=min(_FIRST_RETRY, settings.registration_retry), cap=settings.registration_retry),
        ),
        bus=bus_config(settings),
        data_path=settings.data,
        models_path=settings.models or settings.data / "models",
        backends_path=settings.backends or settings.data / "backends",
        system_backends=(settings.system_backends, *shipped_backends(galleries)),
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


def _storage_config(settings: WorkerSettings) -> StorageConfig | None:
    if not settings.storage_url:
        return None
    need_both("storage_access_key", settings.storage_access_key, "storage_secret_key", settings.storage_secret_key)
    return StorageConfig(
        url=settings.storage_url,
        bucket=settings.storage_bucket,
        region=settings.storage_region,
        access_key=settings.storage_access_key,
        secret_key=settings.storage_secret_key,
    )


def keep_previous(settings: ImageSettings) -> KeepPrevious:
    """Whether one can go back to the version of a backend before."""
    return KeepPrevious(is_wanted=settings.keep_previous, free_bytes=settings.previous_min_free)
