"""What the control process is configured with."""

from datetime import timedelta

from corral.base.errors import InvalidInput, SettingInvalid
from corral.bus.minting import Minter
from corral.control.config import ControlConfig
from corral.domain.intent import IntentPolicy
from corral.domain.load_job import LoadPolicy
from corral.domain.node import LivenessPolicy
from corral.domain.registration import AdmissionPolicy
from corral.domain.upgrades import UpgradePolicy
from corral.processes.configs.shared import bus_config
from corral.processes.settings_table import FrontendSettings


def control_config(settings: FrontendSettings, *, gateway_key: str = "") -> ControlConfig:
    """What the control process is configured with."""
    if settings.offline_after <= settings.unhealthy_after:
        raise SettingInvalid("offline_after", f"must be more than unhealthy_after, which is {settings.unhealthy_after}")
    return ControlConfig(
        data=settings.data,
        bus=bus_config(settings),
        minter=_minter(settings),
        database_url=settings.database_url,
        host=settings.host,
        port=settings.port,
        instance_id=settings.instance_id,
        secrets_key=settings.secrets_key,
        secrets_key_file=settings.secrets_key_path,
        registration_token=settings.registration_token,
        trusted_registration_token=settings.trusted_registration_token,
        admin_keys=settings.admin_keys,
        admission=AdmissionPolicy(
            auto_approve=settings.auto_approve,
            trusts_changed_addresses=settings.trust_changed_addresses,
            max_pending=settings.max_pending_nodes,
            max_pending_per_source=settings.max_pending_per_source,
            pending_retention=settings.pending_retention,
        ),
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
        most_tokens=settings.most_tokens,
        loads=_load_policy(settings),
        intents=IntentPolicy(
            install=settings.install_timeout, upgrade=settings.upgrade_timeout, delete=settings.delete_timeout
        ),
        socket=settings.control_socket,
        gateway_key=gateway_key,
    )


def _minter(settings: FrontendSettings) -> Minter | None:
    if not settings.nats_account_seed:
        return None
    try:
        return Minter(settings.nats_account_seed, settings.nats_worker_jwt_ttl)
    except InvalidInput as error:
        raise SettingInvalid("nats_account_seed", error.problem) from None


def _load_policy(settings: FrontendSettings) -> LoadPolicy:
    fixed = settings.load_timeout
    if fixed is None:
        return LoadPolicy(install=settings.install_timeout)
    return LoadPolicy(install=settings.install_timeout, load=fixed, load_per_gib=timedelta(0), longest_load=fixed)
