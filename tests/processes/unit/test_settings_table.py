"""Rules that every setting in the table keeps, and the names of LocalAI that it must know."""

import pytest

from corral.base.settings import Group, settings_of
from corral.processes import settings
from corral.processes.settings import (
    ACCEPTED_WITHOUT_EFFECT,
    SECRET_VARIABLES,
    SECTIONS,
    all_sections,
    all_settings,
    is_secret,
    known_variables,
    section,
)

GROUPS = all_sections()

# Every name of LocalAI's worker and frontend environment.
LOCALAI_NAMES = [
    "LOCALAI_ADDR",
    "LOCALAI_SERVE_ADDR",
    "LOCALAI_GRPC_MAX_PORT",
    "LOCALAI_HTTP_ADDR",
    "LOCALAI_ADVERTISE_HTTP_ADDR",
    "LOCALAI_ADVERTISE_ADDR",
    "LOCALAI_BACKENDS_PATH",
    "BACKENDS_PATH",
    "LOCALAI_BACKENDS_SYSTEM_PATH",
    "LOCALAI_MODELS_PATH",
    "MODELS_PATH",
    "LOCALAI_BACKEND_GALLERIES",
    "BACKEND_GALLERIES",
    "LOCALAI_GALLERIES",
    "GALLERIES",
    "LOCALAI_PREFETCH_MODELS",
    "PREFETCH_MODELS",
    "LOCALAI_REQUIRE_BACKEND_INTEGRITY",
    "REQUIRE_BACKEND_INTEGRITY",
    "LOCALAI_REGISTER_TO",
    "LOCALAI_NODE_NAME",
    "LOCALAI_REGISTRATION_TOKEN",
    "LOCALAI_API_KEY",
    "LOCALAI_REGISTRATION_REQUIRE_AUTH",
    "LOCALAI_DISTRIBUTED_REQUIRE_AUTH",
    "LOCALAI_HEARTBEAT_INTERVAL",
    "LOCALAI_NODE_LABELS",
    "LOCALAI_MAX_REPLICAS_PER_MODEL",
    "LOCALAI_VRAM_BUDGET",
    "LOCALAI_NATS_URL",
    "LOCALAI_NATS_JWT",
    "LOCALAI_NATS_USER_SEED",
    "LOCALAI_NATS_REQUIRE_AUTH",
    "LOCALAI_NATS_TLS_CA",
    "LOCALAI_NATS_TLS_CERT",
    "LOCALAI_NATS_TLS_KEY",
    "LOCALAI_STORAGE_URL",
    "LOCALAI_STORAGE_BUCKET",
    "LOCALAI_STORAGE_REGION",
    "LOCALAI_STORAGE_ACCESS_KEY",
    "LOCALAI_STORAGE_SECRET_KEY",
    "LOCALAI_GRPC_AUTH_TOKEN",
    "LOCALAI_FORCE_META_BACKEND_CAPABILITY",
    "LOCALAI_FORCE_META_BACKEND_CAPABILITY_RUN_FILE",
    "LOCALAI_DISTRIBUTED",
    "LOCALAI_AUTH",
    "LOCALAI_AUTH_DATABASE_URL",
    "LOCALAI_INSTANCE_ID",
    "LOCALAI_NATS_ACCOUNT_SEED",
    "LOCALAI_NATS_SERVICE_JWT",
    "LOCALAI_NATS_SERVICE_SEED",
    "LOCALAI_NATS_WORKER_JWT_TTL",
    "LOCALAI_AUTO_APPROVE_NODES",
    "LOCALAI_DISTRIBUTED_SHARED_MODELS",
    "LOCALAI_DISTRIBUTED_DISK_HEADROOM_CHECK",
    "LOCALAI_DISTRIBUTED_PREFIX_CACHE",
    "LOCALAI_DISTRIBUTED_PREFIX_CACHE_TTL",
    "LOCALAI_NATS_BACKEND_INSTALL_TIMEOUT",
    "LOCALAI_NATS_BACKEND_UPGRADE_TIMEOUT",
    "LOCALAI_NATS_MODEL_LOAD_TIMEOUT",
    "LOCALAI_MODEL_LOAD_WAIT",
    "LOCALAI_MODEL_SCHEDULING",
    "LOCALAI_MODEL_SCHEDULING_CONFIG",
    "LOCALAI_EXPOSE_NODE_HEADER",
    "LOCALAI_FILE_TRANSFER_TIMEOUT",
    "LOCALAI_FILE_TRANSFER_RETRIES",
]


def test_variables_that_may_hold_secrets_are_listed() -> None:
    assert {name for own in all_settings() if is_secret(own) for name in own.env} == SECRET_VARIABLES


def test_a_secret_has_no_flag() -> None:
    assert [s.name for group in GROUPS for s in settings_of(group) if s.secret and s.flag] == []


def test_one_flag_means_the_same_variable_wherever_it_is_used() -> None:
    variables: dict[str, set[str]] = {}
    for group in GROUPS:
        for setting in settings_of(group):
            if setting.flag:
                variables.setdefault(setting.flag, set()).add(setting.env[0])
    assert {flag: names for flag, names in variables.items() if len(names) > 1} == {}


def test_every_setting_has_a_variable_of_ours_and_a_meaning_with_a_reason() -> None:
    for group in GROUPS:
        for setting in settings_of(group):
            assert setting.env[0].startswith("CORRAL_")
            assert len(setting.meaning) > 40, f"{group.section}.{setting.name} says too little"
            assert setting.meaning.endswith(".")


@pytest.mark.parametrize("name", LOCALAI_NAMES)
def test_every_variable_of_localai_is_known(name: str) -> None:
    assert name in known_variables() or name in ACCEPTED_WITHOUT_EFFECT


def test_no_variable_is_both_used_and_without_effect() -> None:
    assert known_variables() & set(ACCEPTED_WITHOUT_EFFECT) == set()


def test_every_section_is_declared_under_its_own_name_and_each_setting_once() -> None:
    assert [group.section for group in GROUPS] == list(SECTIONS)
    for group in GROUPS:
        names = [setting.name for setting in settings_of(group)]
        assert sorted(names) == sorted(set(names)), f"section {group.section} declares a setting twice"


def test_a_process_asks_only_its_own_section_about_variables_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def noted(name: str) -> type[Group]:
        asked.append(name)
        return section(name)

    monkeypatch.setattr(settings, "section", noted)
    sources = settings.gather({}, {"CORRAL_PORT": "1", "CORRAL_LOG_LEVEL": "debug"})
    assert settings.variable_warnings(sources, ("gateway", "log")) == []
    assert asked == ["gateway", "log"]
