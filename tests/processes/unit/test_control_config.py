"""What the control process is configured with, and which settings contradict each other."""

from datetime import timedelta
from pathlib import Path

import nkeys
import pytest

from corral.base.errors import SettingInvalid
from corral.frontend.config import ControlConfig
from corral.frontend.nodes.decide.registration import AdmissionPolicy
from corral.processes.configs import control_config
from corral.processes.settings import backend_environment, gather
from corral.processes.settings_sources import resolve

ACCOUNT_SEED = nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_ACCOUNT).decode()
FRONTEND = {"HOME": "/home/someone", "CORRAL_NATS_URL": "nats://bus:4222"}


def test_control_gets_every_setting() -> None:
    environment = {
        **FRONTEND,
        "CORRAL_UNHEALTHY_AFTER": "2",
        "CORRAL_OFFLINE_AFTER": "5",
        "CORRAL_EVENT_RETENTION": "7d",
        "CORRAL_MAX_BODY": "64KiB",
        "CORRAL_METRICS_PUBLIC": "yes",
        "LOCALAI_INSTANCE_ID": "blue",
        "LOCALAI_REGISTRATION_TOKEN": "join",
    }
    config = control_config(resolve(ControlConfig, gather({"--data": "/srv"}, environment)))
    assert (config.liveness.unhealthy_after, config.liveness.offline_after) == (2, 5)
    assert config.event_retention == timedelta(days=7)
    assert config.max_body == 65536
    assert config.metrics_public
    assert config.instance_id == "blue"
    assert config.registration_token == "join"
    assert config.bus.url == "nats://bus:4222"
    assert config.secrets_key_file == Path("/srv/secrets.key")


def test_who_is_admitted_comes_from_settings() -> None:
    settings = resolve(ControlConfig, gather({}, FRONTEND))
    assert control_config(settings).admission == AdmissionPolicy()
    environment = {**FRONTEND, "CORRAL_MAX_PENDING_NODES": "7", "CORRAL_PENDING_RETENTION": "5m"}
    flags = {"--trust-changed-addresses": True, "--max-pending-per-source": "3", "--auto-approve": True}
    assert control_config(resolve(ControlConfig, gather(flags, environment))).admission == AdmissionPolicy(
        auto_approve=True,
        trusts_changed_addresses=True,
        max_pending=7,
        max_pending_per_source=3,
        pending_retention=timedelta(minutes=5),
    )
    with pytest.raises(SettingInvalid, match="max_pending_nodes"):
        resolve(ControlConfig, gather({"--max-pending-nodes": "0"}, FRONTEND))


@pytest.mark.parametrize("name", ["CORRAL_ADMIN_KEYS", "LOCALAI_API_KEY"])
def test_keys_of_administrators_come_from_the_environment_and_are_not_shown(name: str) -> None:
    sources = gather({}, {**FRONTEND, name: "hidden-1, hidden-2"})
    settings = resolve(ControlConfig, sources)
    assert control_config(settings).admin_keys == ("hidden-1", "hidden-2")
    assert "hidden" not in repr(settings) + repr(control_config(settings))
    assert name not in backend_environment(sources.environment)
    with pytest.raises(SettingInvalid, match="admin_keys: the value from the environment variable") as refused:
        resolve(ControlConfig, gather({}, {**FRONTEND, name: "hidden,,"}))
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"CORRAL_UNHEALTHY_AFTER": "6"}, "offline_after: must be more than unhealthy_after, which is 6"),
        ({"CORRAL_NATS_JWT": "x"}, "nats_seed: is needed beside nats_jwt"),
        ({"CORRAL_NATS_SEED": "x"}, "nats_jwt: is needed beside nats_seed"),
        (
            {"LOCALAI_NATS_ACCOUNT_SEED": "x"},
            "nats_account_seed: is no seed; that of an account starts with SA",
        ),
        (
            {"CORRAL_NATS_ACCOUNT_SEED": ACCOUNT_SEED, "LOCALAI_NATS_WORKER_JWT_TTL": "24h"},
            "nats_worker_jwt_ttl: is 1d 0h, and may be 10m at most without nats_operator_seed: a removed node would "
            "hear the fleet for so long; leave it out, or set nats_operator_seed and nats_system_creds, with which "
            "removed nodes are cut off at once",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingInvalid) as refused:
        control_config(resolve(ControlConfig, gather({}, {**FRONTEND, **environment})))
    assert str(refused.value) == sentence


@pytest.mark.parametrize(("text", "expected"), [("", timedelta(minutes=10)), ("5m", timedelta(minutes=5))])
def test_without_the_operator_a_user_of_a_node_is_short_lived(text: str, expected: timedelta) -> None:
    environment = {**FRONTEND, "CORRAL_NATS_ACCOUNT_SEED": ACCOUNT_SEED}
    lifetime = {"CORRAL_NATS_WORKER_JWT_TTL": text} if text else {}
    config = control_config(resolve(ControlConfig, gather({}, {**environment, **lifetime})))
    assert config.nats_worker_jwt_ttl == expected


def test_rules_of_scheduling_come_from_localai_s_variable_or_from_a_table() -> None:
    text = '[{"model_name": "a", "replicas": "all"}, {"model_name": "b", "min_replicas": 2}]'
    config = resolve(ControlConfig, gather({}, {**FRONTEND, "LOCALAI_MODEL_SCHEDULING": text}))
    assert [(wish.model, wish.spread_all, wish.min_replicas) for wish in config.model_scheduling] == [
        ("a", True, 0),
        ("b", False, 2),
    ]
    file = {**FRONTEND, "LOCALAI_MODEL_SCHEDULING_CONFIG": "/etc/rules.yaml"}
    assert resolve(ControlConfig, gather({}, file)).model_scheduling_file == Path("/etc/rules.yaml")


def test_a_rule_of_scheduling_that_cannot_be_is_refused_by_its_entry() -> None:
    text = '[{"model_name": "a"}, {"model_name": "b", "replicas": 3}]'
    with pytest.raises(SettingInvalid, match=r"model_scheduling: \[1\] \(b\)\.replicas: is no text"):
        resolve(ControlConfig, gather({}, {**FRONTEND, "CORRAL_MODEL_SCHEDULING": text}))
