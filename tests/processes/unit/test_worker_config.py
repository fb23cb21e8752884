"""What a worker is configured with, from our own environment or from that of a LocalAI worker."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from corral.base.errors import SettingInvalid
from corral.processes.configs import worker_config
from corral.processes.settings import gather
from corral.processes.settings_sources import resolve
from corral.worker.config import WorkerConfig
from corral.worker.membership.addresses import decide

WORKER = {
    "HOME": "/home/someone",
    "CORRAL_NATS_URL": "nats://bus:4222",
    "CORRAL_REGISTER_TO": "http://frontend:8080",
}


def test_a_localai_environment_configures_a_worker() -> None:
    environment = {
        "HOME": "/home/someone",
        "LOCALAI_REGISTER_TO": "http://frontend:8080/",
        "LOCALAI_NATS_URL": "nats://worker:secret@bus:4222",
        "LOCALAI_REGISTRATION_TOKEN": "join",
        "LOCALAI_NODE_NAME": "gpu-7",
        "LOCALAI_ADDR": "10.0.0.7:50051",
        "LOCALAI_GRPC_MAX_PORT": "50100",
        "LOCALAI_HTTP_ADDR": "0.0.0.0:50050",
        "LOCALAI_MODELS_PATH": "/models",
        "BACKENDS_PATH": "/backends",
        "LOCALAI_HEARTBEAT_INTERVAL": "1m30s",
        "LOCALAI_NODE_LABELS": "zone=a, disk = fast",
        "LOCALAI_MAX_REPLICAS_PER_MODEL": "0",
        "LOCALAI_VRAM_BUDGET": "80%",
        "LOCALAI_GALLERIES": "[]",
        "LOCALAI_STORAGE_SECRET_KEY": "later",
    }
    config = worker_config(resolve(WorkerConfig, gather({}, environment)), environment)
    assert config.frontend.urls == ("http://frontend:8080",)
    assert config.frontend.registration_token == "join"
    assert config.node.name == "gpu-7"
    assert config.node.labels == {"zone": "a", "disk": "fast"}
    assert config.node.max_replicas_per_model == 1
    assert config.node.vram_budget == "80%"
    assert config.addresses.addr == "10.0.0.7:50051"
    assert config.addresses.grpc_max_port == 50100
    assert (config.models_path, config.backends_path) == (Path("/models"), Path("/backends"))
    assert config.heartbeat_interval == timedelta(seconds=90)
    assert config.data_path == Path("/home/someone/.local/share/corral/worker")
    assert config.storage is None


@pytest.mark.parametrize("name", ["LOCALAI_REGISTRATION_REQUIRE_AUTH", "LOCALAI_DISTRIBUTED_REQUIRE_AUTH"])
def test_a_worker_may_be_told_not_to_start_without_a_token(name: str) -> None:
    environment = {
        "LOCALAI_REGISTER_TO": "http://frontend:8080",
        "LOCALAI_NATS_URL": "nats://bus:4222",
        name: "true",
    }
    with pytest.raises(SettingInvalid, match="registration_token: is needed"):
        worker_config(resolve(WorkerConfig, gather({}, environment)), environment)
    environment["LOCALAI_REGISTRATION_TOKEN"] = "join"
    assert worker_config(resolve(WorkerConfig, gather({}, environment)), environment)


def test_localai_s_switch_for_all_credentials_wins_over_the_one_for_registrations() -> None:
    environment = {
        **WORKER,
        "LOCALAI_REGISTRATION_REQUIRE_AUTH": "false",
        "LOCALAI_DISTRIBUTED_REQUIRE_AUTH": "true",
    }
    with pytest.raises(SettingInvalid, match="registration_token: is needed, since require_auth is set"):
        worker_config(resolve(WorkerConfig, gather({}, environment)), environment)


def test_a_localai_environment_names_an_object_storage() -> None:
    storage = {
        "LOCALAI_STORAGE_URL": "http://minio:9000",
        "LOCALAI_STORAGE_ACCESS_KEY": "access",
        "LOCALAI_STORAGE_SECRET_KEY": "hidden",
    }
    config = worker_config(resolve(WorkerConfig, gather({}, {**WORKER, **storage})), {**WORKER, **storage})

    assert config.storage is not None
    assert (config.storage.url, config.storage.bucket) == ("http://minio:9000", "localai")
    assert (config.storage.access_key, config.storage.secret_key) == ("access", "hidden")
    assert config.backend_environment.keys() & storage.keys() == set()


def test_half_of_the_keys_of_an_object_storage_are_refused() -> None:
    environment = {**WORKER, "CORRAL_STORAGE_URL": "http://minio:9000", "CORRAL_STORAGE_ACCESS_KEY": "access"}
    with pytest.raises(SettingInvalid, match="storage_secret_key: is needed beside storage_access_key"):
        worker_config(resolve(WorkerConfig, gather({}, environment)), environment)


def test_a_day_and_a_minute_by_default() -> None:
    files = worker_config(resolve(WorkerConfig, gather({}, WORKER)), WORKER).files

    assert (files.staging_path, files.retention, files.stall_timeout) == (
        None,
        timedelta(hours=24),
        timedelta(minutes=1),
    )


def test_from_the_environment_and_from_flags() -> None:
    environment = {**WORKER, "CORRAL_STAGING_PATH": "/fast/staging", "CORRAL_FILE_RETENTION": "2h"}
    files = worker_config(resolve(WorkerConfig, gather({"--file-stall-timeout": "5s"}, environment)), environment).files

    assert (files.staging_path, files.retention, files.stall_timeout) == (
        Path("/fast/staging"),
        timedelta(hours=2),
        timedelta(seconds=5),
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [("CORRAL_FILE_RETENTION", "1s"), ("CORRAL_FILE_RETENTION", "soon"), ("CORRAL_FILE_STALL_TIMEOUT", "0s")],
)
def test_what_makes_no_sense_is_named(variable: str, value: str) -> None:
    with pytest.raises(SettingInvalid, match=variable):
        resolve(WorkerConfig, gather({}, {**WORKER, variable: value}))


@pytest.mark.parametrize(
    ("name", "text", "read", "warning"),
    [
        ("LOCALAI_VRAM_BUDGET", "200%", lambda config: config.node.vram_budget == "200%", "'200%' is no budget"),
        (
            "LOCALAI_NODE_LABELS",
            f"a=b, bad ,=x,c=d,{'k' * 300}=v",
            lambda config: config.node.labels == {"a": "b", "c": "d"},
            "labels that cannot be used are left out: 'bad', '=x', 'kkk",
        ),
        (
            "LOCALAI_ADVERTISE_ADDR",
            "worker-1",
            lambda config: decide(config.addresses, "host").advertise == "worker-1:50051",
            "'worker-1' has no port; the base port is added",
        ),
    ],
)
def test_what_a_localai_worker_takes_does_not_stop_ours(
    name: str, text: str, read: Callable[[WorkerConfig], bool], warning: str
) -> None:
    sources = gather({}, {**WORKER, name: text})
    assert read(resolve(WorkerConfig, sources))
    assert any(f"of the environment variable {name}, {warning}" in text for text in sources.warnings)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CORRAL_VRAM_BUDGET", "200%"),
        ("CORRAL_NODE_LABELS", "a=b,bad"),
        ("CORRAL_ADVERTISE_ADDRESS", "worker-1"),
        ("LOCALAI_ADVERTISE_ADDR", "http://worker-1:50051"),
        ("LOCALAI_VRAM_BUDGET", "x" * 300),
    ],
)
def test_nonsense_in_our_own_variables_is_refused_and_what_nobody_could_use(name: str, text: str) -> None:
    with pytest.raises(SettingInvalid, match=f"from the environment variable {name} cannot be used"):
        resolve(WorkerConfig, gather({}, {**WORKER, name: text}))


@pytest.mark.parametrize(
    ("added", "passed"),
    [
        ("", {"HF_ENDPOINT"}),
        ("HF_TOKEN", {"HF_ENDPOINT", "HF_TOKEN"}),
        ("HF_*,LOCALAI_REGISTRATION_TOKEN", {"HF_ENDPOINT"}),
    ],
)
def test_what_engines_need_of_a_hub_reaches_backends_as_the_setting_says(added: str, passed: set[str]) -> None:
    """Frontends have settings of the same names; that of the fleet's token never passes."""
    hub = {"HF_TOKEN": "hf_x", "HUGGING_FACE_HUB_TOKEN": "hf_x", "HF_ENDPOINT": "https://mirror.example"}
    environment = {**WORKER, **hub, "LOCALAI_REGISTRATION_TOKEN": "tok", "CORRAL_BACKEND_ENVIRONMENT": added}
    config = worker_config(resolve(WorkerConfig, gather({}, environment)), environment)

    assert config.backend_environment.keys() & {*hub, "LOCALAI_REGISTRATION_TOKEN"} == passed
    assert set(config.withheld_tokens) == {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"} - passed


def test_an_address_of_a_hub_that_holds_a_password_reaches_no_backend() -> None:
    environment = {**WORKER, "HF_ENDPOINT": "https://me:word@mirror.example"}
    config = worker_config(resolve(WorkerConfig, gather({}, environment)), environment)

    assert "HF_ENDPOINT" not in config.backend_environment
