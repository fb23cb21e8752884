"""Builds the configuration of each process from its resolved settings, and loads the certificates that these name.

Contradictions between settings are refused here; a single invalid value is refused by its kind. The configurations
themselves are not imported, so that each process imports no more than its own.
"""

import ssl
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from corral.base.errors import InvalidInput, SettingInvalid
from corral.base.words import format_duration
from corral.processes.settings import backend_environment
from corral.processes.settings_sources import SettingSources, resolve

if TYPE_CHECKING:
    from corral.bus.client import NatsBus
    from corral.bus.config import BusConfig
    from corral.bus.credentials import CredentialsProvider
    from corral.files.storage import StorageConfig
    from corral.frontend.config import ControlConfig
    from corral.galleries.config import GalleriesConfig
    from corral.gateway.config import GatewayConfig
    from corral.hubs.config import HubsConfig
    from corral.oci.config import ImagesConfig
    from corral.worker.config import WorkerConfig


LONGEST_UNENDED: Final = timedelta(minutes=10)
"""How long a node's user of NATS may last where nobody can end it."""


def control_config(settings: "ControlConfig", *, gateway_key: str = "") -> "ControlConfig":
    """Build the configuration of the control process."""
    liveness = settings.liveness
    if liveness.offline_after <= liveness.unhealthy_after:
        raise SettingInvalid("offline_after", f"must be more than unhealthy_after, which is {liveness.unhealthy_after}")
    _check_bus(settings.bus)
    settings = _with_nats_users(settings)
    loads = replace(settings.loads, install=settings.intents.install)
    storage = _checked_storage(settings.storage)
    return replace(settings, loads=loads, storage=storage, gateway_key=gateway_key)


def _with_nats_users(settings: "ControlConfig") -> "ControlConfig":
    """Return the settings with what makes users of NATS and ends them, as far as there are seeds for that."""
    _need_both("nats_operator_seed", settings.nats_operator_seed, "nats_system_creds", settings.nats_system_creds)
    if not settings.nats_account_seed:
        if settings.nats_require_auth:
            raise SettingInvalid("nats_account_seed", "is needed, since nats_require_auth is set")
        if settings.nats_operator_seed:
            raise SettingInvalid("nats_account_seed", "is needed beside nats_operator_seed")
        return settings
    from corral.bus.minting import Minter

    try:
        minter = Minter(settings.nats_account_seed, settings.nats_worker_jwt_ttl)
    except InvalidInput as error:
        raise SettingInvalid("nats_account_seed", error.problem) from None
    if settings.nats_system_creds is None:
        _check_lifetime(settings.nats_worker_jwt_ttl)
        return replace(settings, minter=minter)
    from corral.bus.credentials import read_creds
    from corral.bus.revoking import Revoker

    try:
        system = read_creds(_read("nats_system_creds", settings.nats_system_creds).decode(errors="replace"))
    except InvalidInput as error:
        problem = f"{settings.nats_system_creds} cannot be used: {error.problem}"
        raise SettingInvalid("nats_system_creds", problem) from None
    try:
        revoker = Revoker(
            operator_seed=settings.nats_operator_seed,
            system=system,
            account=minter.account,
            connect=partial(_revoking_bus, settings.bus),
        )
    except InvalidInput as error:
        raise SettingInvalid("nats_operator_seed", error.problem) from None
    return replace(settings, minter=minter, revoker=revoker)


def _revoking_bus(config: "BusConfig", credentials: "CredentialsProvider") -> "NatsBus":
    """Make the bus over which NATS users are revoked. Imported here: the launcher never needs the NATS client."""
    from corral.bus.client import NatsBus

    return NatsBus(config, name="corral-revocations", credentials=credentials)


def _check_lifetime(lifetime: timedelta) -> None:
    """Nothing but its end stops a user of NATS whose node was removed, where the operator's seed is not known."""
    if lifetime > LONGEST_UNENDED:
        raise SettingInvalid(
            "nats_worker_jwt_ttl",
            f"is {format_duration(lifetime)}, and may be 10m at most without nats_operator_seed: a removed node would "
            "hear the fleet for so long; leave it out, or set nats_operator_seed and nats_system_creds, with which "
            "removed nodes are cut off at once",
        )


def gateway_config(settings: "GatewayConfig", *, key: str = "") -> "GatewayConfig":
    """Build the configuration of a gateway; an inherited key takes precedence over the setting."""
    control_key = key or settings.control_key
    if not control_key:
        raise SettingInvalid("key", "a key with the scope gateway is needed: set CORRAL_GATEWAY_KEY")
    limits = settings.limits
    return replace(
        settings,
        control_key=control_key,
        control_tls=client_tls(settings.control_ca) if settings.control_url.startswith("https://") else None,
        tls=server_tls(settings.tls_cert, settings.tls_key),
        limits=replace(limits, bodies=max(limits.bodies, 2 * limits.body)),
    )


def worker_config(
    settings: "WorkerConfig", environment: Mapping[str, str], galleries: "GalleriesConfig | None" = None
) -> "WorkerConfig":
    """Build the configuration of a worker; its backends are started in `environment`."""
    frontend = settings.frontend
    if not frontend.urls:
        problem = "a value is needed; join a fleet with the flag --join, or give the flag --register-to or the"
        raise SettingInvalid("register_to", f"{problem} environment variable CORRAL_REGISTER_TO")
    required_by = "require_token" if frontend.require_token else "require_auth" if frontend.require_auth else ""
    if required_by and not frontend.registration_token and not frontend.is_joining:
        raise SettingInvalid("registration_token", f"is needed, since {required_by} is set")
    _check_bus(settings.bus)
    from corral.worker.confinement.environment import inherited, withheld

    for_backends = inherited(backend_environment(environment), settings.confinement.environment)
    return replace(
        settings,
        system_backends=(*settings.system_backends, *shipped_backends(galleries)),
        backend_environment=for_backends,
        withheld_tokens=withheld(environment, for_backends),
        storage=_checked_storage(settings.storage),
    )


def _checked_storage(storage: "StorageConfig | None") -> "StorageConfig | None":
    """Return None when no object storage is named."""
    if storage is None or not storage.url:
        return None
    _need_both("storage_access_key", storage.access_key, "storage_secret_key", storage.secret_key)
    return storage


def _check_bus(bus: "BusConfig") -> None:
    _need_both("nats_jwt", bus.jwt, "nats_seed", bus.seed)
    _need_both("nats_tls_cert", bus.tls_cert, "nats_tls_key", bus.tls_key)


def _need_both(name: str, value: object, other: str, other_value: object) -> None:
    """Refuse half of a pair of settings; the error names the missing half."""
    if bool(value) != bool(other_value):
        missing, present = (other, name) if value else (name, other)
        raise SettingInvalid(missing, f"is needed beside {present}")


def images_config(sources: SettingSources) -> "ImagesConfig":
    """Resolve the settings of images, with the proxies of the environment, which pullers are also started in."""
    from corral.oci.config import ImagesConfig
    from corral.oci.limits import with_proxies

    settings = resolve(ImagesConfig, sources)
    network = with_proxies(settings.network, sources.environment)
    return replace(settings, network=network, environment=sources.environment)


def hubs_config(sources: SettingSources, images: "ImagesConfig") -> "HubsConfig":
    """Resolve the settings of hubs of models, which use the network and the logins as images do."""
    from corral.hubs.config import HubsConfig

    return replace(resolve(HubsConfig, sources), images=images)


def shipped_backends(galleries: "GalleriesConfig | None") -> tuple[Path, ...]:
    """Return the directories of Corral's own backends in a checkout, unless there are images of them."""
    if galleries is not None and galleries.builtin is not None:
        return ()
    folder = Path(__file__).absolute().parents[3] / "backends"
    return (folder,) if (folder / "sdk").is_dir() else ()


def shipped_installers() -> tuple[Path, ...]:
    """Return places where uv may be besides the PATH: beside this Python, and where a checkout's setup puts it."""
    checkout = Path(__file__).absolute().parents[3]
    return (Path(sys.prefix) / "bin" / "uv", *sorted(checkout.glob(".build/uv-*/bin/uv")))


def server_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return None if TLS is not configured. SettingInvalid names the setting of the invalid file."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        missing, other = ("tls_cert", "tls_key") if certificate is None else ("tls_key", "tls_cert")
        raise SettingInvalid(missing, f"is needed beside {other}; set CORRAL_{missing.upper()}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    certificate_bytes, key_bytes = _read("tls_cert", certificate), _read("tls_key", key)

    def refuse_password() -> NoReturn:
        problem = "is encrypted; Corral starts without a person, so it needs a key without a password"
        raise SettingInvalid("tls_key", problem)

    try:
        context.load_cert_chain(certificate, key, password=refuse_password)
    except ssl.SSLError as error:
        name, problem = "tls_cert", f"{certificate} and {key} cannot be used: {error.reason or error}"
        if error.reason == "KEY_VALUES_MISMATCH":
            name, problem = "tls_key", f"{key} is not the key of the certificate in {certificate}"
        elif b"PRIVATE KEY-----" not in key_bytes:
            name, problem = "tls_key", f"{key} holds no private key in PEM form"
        elif b"-----BEGIN CERTIFICATE-----" not in certificate_bytes:
            problem = f"{certificate} holds no certificate in PEM form"
        raise SettingInvalid(name, problem) from None
    return context


def client_tls(authorities: Path | None) -> ssl.SSLContext:
    """Return a context that trusts the system's authorities, or those of a file instead."""
    if authorities is None:
        return ssl.create_default_context()
    _read("control_ca", authorities)
    try:
        return ssl.create_default_context(cafile=authorities)
    except ssl.SSLError:
        raise SettingInvalid("control_ca", f"{authorities} holds no certificate in PEM form") from None


def _read(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingInvalid(setting, f"{path} cannot be read: {error.strerror}") from None
