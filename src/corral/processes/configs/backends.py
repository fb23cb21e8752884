"""How galleries are read and images fetched, by whichever process."""

from collections.abc import Mapping

from corral.galleries.config import GalleriesConfig
from corral.oci.auth import config_files, read_auths
from corral.oci.config import ImagesConfig
from corral.oci.limits import UnpackLimits
from corral.oci.network import Network, proxies_of
from corral.processes.settings_table import GallerySettings, ImageSettings


def galleries_config(settings: GallerySettings) -> GalleriesConfig:
    """How galleries are read, by whichever process."""
    return GalleriesConfig(
        sources=settings.backend_galleries,
        builtin=settings.builtin,
        cache=settings.cache,
        max_age=settings.max_age,
        timeout=settings.timeout,
        max_bytes=settings.max_size,
    )


def images_config(settings: ImageSettings, environment: Mapping[str, str]) -> ImagesConfig:
    """How images are fetched and unpacked, by whichever process installs."""
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
