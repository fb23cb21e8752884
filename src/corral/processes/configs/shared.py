"""What several configurations have in common."""

from corral.base.errors import SettingInvalid
from corral.bus.config import BusConfig
from corral.processes.settings_table import FrontendSettings, WorkerSettings


def bus_config(settings: FrontendSettings | WorkerSettings) -> BusConfig:
    """How to reach NATS, for whoever does."""
    need_both("nats_jwt", settings.nats_jwt, "nats_seed", settings.nats_seed)
    need_both("nats_tls_cert", settings.nats_tls_cert, "nats_tls_key", settings.nats_tls_key)
    return BusConfig(
        url=settings.nats_url,
        jwt=settings.nats_jwt,
        seed=settings.nats_seed,
        tls_ca=settings.nats_tls_ca,
        tls_cert=settings.nats_tls_cert,
        tls_key=settings.nats_tls_key,
    )


def need_both(one: str, one_value: object, other: str, other_value: object) -> None:
    """Refuse half of a pair of settings, and name the other half."""
    if one_value and not other_value:
        raise SettingInvalid(other, f"is needed beside {one}")
    if other_value and not one_value:
        raise SettingInvalid(one, f"is needed beside {other}")
