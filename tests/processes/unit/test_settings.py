"""Which source of a setting wins, what is said when a value cannot be used, and what children are told."""

from datetime import timedelta
from pathlib import Path

import pytest

from corral.base.errors import SettingInvalid
from corral.frontend.config import ControlConfig
from corral.processes.configs import control_config, worker_config
from corral.processes.settings import (
    CONTROL_NEEDS,
    GATEWAY_NEEDS,
    WORKER_NEEDS,
    ClientSettings,
    UpSettings,
    child_environment,
    gather,
    listed_environment,
    secret_variables,
    variable_warnings,
)
from corral.processes.settings_sources import resolve
from corral.worker.config import WorkerConfig

HOME = {"HOME": "/home/someone"}
FRONTEND = {**HOME, "CORRAL_NATS_URL": "nats://bus:4222"}
WORKER = {**FRONTEND, "CORRAL_REGISTER_TO": "http://frontend:8080"}


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return str(path)


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "corral.toml", "[frontend]\nport = 1\nhost = '10.0.0.1'\nunhealthy_after = 4\n")
    sources = gather({"--port": "3", "--config": file}, {**FRONTEND, "CORRAL_PORT": "2", "CORRAL_HOST": "10.0.0.2"})

    settings = resolve(ControlConfig, sources)

    assert (settings.port, settings.host, settings.liveness.unhealthy_after) == (3, "10.0.0.2", 4)


def test_our_own_variable_wins_over_localais() -> None:
    both = {**FRONTEND, "CORRAL_AUTO_APPROVE": "false", "LOCALAI_AUTO_APPROVE_NODES": "true"}
    assert resolve(ControlConfig, gather({}, both)).admission.auto_approve is False
    del both["CORRAL_AUTO_APPROVE"]
    assert resolve(ControlConfig, gather({}, both)).admission.auto_approve is True


def test_an_empty_variable_counts_as_not_set() -> None:
    assert resolve(ControlConfig, gather({}, {**FRONTEND, "CORRAL_PORT": ""})).port == 8080


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOME": "/home/someone"}, "/home/someone/.local/share/corral"),
        ({"HOME": "/home/someone", "XDG_DATA_HOME": "/data"}, "/data/corral"),
        ({"HOME": "/home/someone", "XDG_DATA_HOME": "relative"}, "/home/someone/.local/share/corral"),
    ],
)
def test_the_default_data_directory_follows_the_xdg_rules(environment: dict[str, str], expected: str) -> None:
    assert resolve(UpSettings, gather({}, environment)).data == Path(expected)


def test_the_database_and_the_secrets_key_are_in_the_data_directory_unless_said_otherwise() -> None:
    settings = resolve(ControlConfig, gather({"--data": "/srv/corral"}, FRONTEND))
    assert settings.database_url == "sqlite:////srv/corral/corral.db"
    assert settings.secrets_key_file == Path("/srv/corral/secrets.key")
    other = resolve(ControlConfig, gather({"--database": "postgresql://someone@db/corral"}, FRONTEND))
    assert other.database_url == "postgresql://someone@db/corral"


@pytest.mark.parametrize(
    ("flags", "environment", "sentence"),
    [
        (
            {"--port": "many"},
            {},
            'port: "many" from the flag --port cannot be used; allowed is a whole number from 0 to 65535',
        ),
        (
            {},
            {"CORRAL_PORT": "65536"},
            'port: "65536" from the environment variable CORRAL_PORT cannot be used; allowed is a whole number '
            "from 0 to 65535",
        ),
        (
            {},
            {"LOCALAI_AUTO_APPROVE_NODES": "perhaps"},
            'auto_approve: "perhaps" from the environment variable LOCALAI_AUTO_APPROVE_NODES cannot be used; '
            "allowed is true or false",
        ),
        (
            {},
            {"LOCALAI_REGISTRATION_TOKEN": "two words"},
            "registration_token: the value from the environment variable LOCALAI_REGISTRATION_TOKEN cannot be used; "
            "allowed is 1 to 8192 printable ASCII characters without blanks",
        ),
        (
            {},
            {"CORRAL_DATABASE": "mysql://someone:hidden@db/corral?sslpassword=hidden"},
            'database: "mysql://***@db/corral?***" from the environment variable CORRAL_DATABASE cannot be used; '
            "allowed is sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/NAME",
        ),
        (
            {"--nats": "nats://someone:hidden@bus"},
            {},
            "nats_url: the flag --nats carries a password, which others on this machine could read in the process "
            "list; set the environment variable CORRAL_NATS_URL or write it into a file for --config",
        ),
        (
            {"--install-timeout": "-5m"},
            {},
            'install_timeout: "-5m" from the flag --install-timeout cannot be used; allowed is a duration such as 10s, '
            "1m30s or 24h, from 1s to 24h",
        ),
        (
            {},
            {"LOCALAI_NATS_BACKEND_INSTALL_TIMEOUT": "soon"},
            'install_timeout: "soon" from the environment variable LOCALAI_NATS_BACKEND_INSTALL_TIMEOUT cannot be '
            "used; allowed is a duration such as 10s, 1m30s or 24h, from 1s to 24h",
        ),
        (
            {},
            {"LOCALAI_NATS_BACKEND_UPGRADE_TIMEOUT": "-1s"},
            'upgrade_timeout: "-1s" from the environment variable LOCALAI_NATS_BACKEND_UPGRADE_TIMEOUT cannot be '
            "used; allowed is a duration such as 10s, 1m30s or 24h, from 1s to 24h",
        ),
        (
            {"--nats-tls-ca": "/nowhere/ca.pem"},
            {},
            'nats_tls_ca: "/nowhere/ca.pem" from the flag --nats-tls-ca cannot be used; allowed is the path of a file '
            "that exists",
        ),
    ],
)
def test_a_refusal_names_setting_value_source_and_what_is_allowed(
    flags: dict[str, str], environment: dict[str, str], sentence: str
) -> None:
    with pytest.raises(SettingInvalid) as refused:
        resolve(ControlConfig, gather(flags, {**FRONTEND, **environment}))
    assert str(refused.value) == sentence


def test_a_missing_value_that_is_needed_is_asked_for() -> None:
    with pytest.raises(SettingInvalid, match="nats_url: a value is needed; give the flag --nats or the environment"):
        resolve(ControlConfig, gather({}, HOME))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://someone:hidden@db/corral",
        "postgresql://db/corral?password=hidden",
        "postgres://:hidden@db/corral",
        "nonsense://someone:hidden@db",
    ],
)
def test_a_database_url_with_a_password_is_never_a_flag(url: str) -> None:
    with pytest.raises(SettingInvalid) as refused:
        resolve(ControlConfig, gather({"--database": url}, FRONTEND))
    assert "hidden" not in str(refused.value)
    assert "CORRAL_DATABASE" in str(refused.value)


def test_secrets_and_urls_that_may_hold_some_are_not_in_the_repr() -> None:
    environment = {
        **WORKER,
        "CORRAL_NATS_URL": "nats://someone:hidden@bus",
        "CORRAL_DATABASE": "postgresql://someone:hidden@db/corral",
        "CORRAL_REGISTRATION_TOKEN": "hidden",
        "CORRAL_SECRETS_KEY": "hidden",
        "CORRAL_TRUSTED_REGISTRATION_TOKEN": "hidden",
        "CORRAL_KEY": "hidden",
    }
    sources = gather({}, environment)
    for group in (ControlConfig, WorkerConfig, ClientSettings):
        assert "hidden" not in repr(resolve(group, sources))
    assert "hidden" not in repr(control_config(resolve(ControlConfig, sources)))
    assert "hidden" not in repr(worker_config(resolve(WorkerConfig, sources), sources.environment))


class TestForgiving:
    def test_localais_interval_falls_back_as_localai_does(self) -> None:
        sources = gather({}, {**WORKER, "LOCALAI_HEARTBEAT_INTERVAL": "soon"})
        assert resolve(WorkerConfig, sources).heartbeat_interval == timedelta(seconds=10)
        [warning] = sources.warnings
        assert "LOCALAI_HEARTBEAT_INTERVAL" in warning

    def test_our_interval_is_an_error(self) -> None:
        with pytest.raises(SettingInvalid, match="heartbeat_interval"):
            resolve(WorkerConfig, gather({}, {**WORKER, "CORRAL_HEARTBEAT_INTERVAL": "soon"}))

    def test_localais_address_falls_back_to_the_next_source_of_the_base_port(self) -> None:
        sources = gather({}, {**WORKER, "LOCALAI_ADDR": "host:99999", "LOCALAI_SERVE_ADDR": "0.0.0.0:6000"})
        settings = resolve(WorkerConfig, sources)
        assert (settings.addresses.addr, settings.addresses.serve_addr) == ("", "0.0.0.0:6000")
        assert len(sources.warnings) == 1


class TestUnknownVariables:
    def test_are_warned_about_with_the_nearest_name(self) -> None:
        sources = gather({}, {"CORRAL_PROT": "1", "CORRAL_SERVICE_HOST_XYZ": "1", "LOCALAI_NONSENSE": "1", "PATH": "/"})
        assert variable_warnings(sources) == [
            "the environment variable CORRAL_PROT is unknown and ignored; did you mean CORRAL_PORT?",
            "the environment variable CORRAL_SERVICE_HOST_XYZ is unknown and ignored",
        ]

    def test_do_not_reach_children(self) -> None:
        sources = gather({}, {"CORRAL_PROT": "1", "CORRAL_PORT": "2", "PATH": "/"})
        assert child_environment(sources) == {"CORRAL_PORT": "2", "PATH": "/"}


def test_a_child_gets_the_settings_that_it_needs_and_no_others() -> None:
    secrets = {
        "CORRAL_DATABASE": "postgresql://u:p@db/corral",
        "CORRAL_NATS_URL": "nats://u:p@nats:4222",
        "CORRAL_TRUSTED_REGISTRATION_TOKEN": "t",
        "CORRAL_SECRETS_KEY": "s",
        "LOCALAI_REGISTRATION_TOKEN": "r",
        "CORRAL_GATEWAY_KEY": "g",
    }
    sources = gather({"--load-wait": "9s"}, {**secrets, "PATH": "/", "CORRAL_HOST": "::1"})

    assert child_environment(sources, {"CORRAL_PORT": "1"}, needs=GATEWAY_NEEDS) == {
        "CORRAL_GATEWAY_KEY": "g",
        "CORRAL_HOST": "::1",
        "CORRAL_LOAD_WAIT": "9s",
        "CORRAL_PORT": "1",
        "PATH": "/",
    }
    assert "CORRAL_GATEWAY_KEY" not in child_environment(sources, needs=CONTROL_NEEDS)
    assert "CORRAL_DATABASE" not in child_environment(sources, needs=WORKER_NEEDS)


def test_a_child_by_list_gets_nothing_that_nobody_listed(tmp_path: Path) -> None:
    file = tmp_path / "corral.toml"
    file.write_text("")
    foreign = {"AWS_SECRET_ACCESS_KEY": "x", "HTTPS_PROXY": "http://u:p@proxy", "PATH": "/", "TMPDIR": "/t"}
    ours = {"CORRAL_DATABASE": "postgresql://u:p@db/corral", "CORRAL_GATEWAY_KEY": "g"}
    sources = gather({"--load-wait": "9s", "--config": str(file)}, {**foreign, **ours})

    assert listed_environment(sources, {"CORRAL_PORT": "1"}, needs=GATEWAY_NEEDS) == {
        "CORRAL_CONFIG": str(file),
        "CORRAL_GATEWAY_KEY": "g",
        "CORRAL_LOAD_WAIT": "9s",
        "CORRAL_PORT": "1",
        "PATH": "/",
        "TMPDIR": "/t",
    }


def test_secrets_are_known_by_their_settings_and_by_their_names() -> None:
    environment = {
        "LOCALAI_REGISTRATION_TOKEN": "r",
        "CORRAL_NATS_URL": "nats://u:p@nats:4222",
        "CORRAL_DATABASE": "postgresql://u:p@db/corral",
        "CORRAL_OLD_PASSWORD": "of a version that is gone",
        "CORRAL_NODE_NAME": "w",
        "THEIR_TOKEN": "not ours",
    }
    gone = {"LOCALAI_REGISTRATION_TOKEN", "CORRAL_NATS_URL", "CORRAL_OLD_PASSWORD"}
    assert secret_variables(WORKER_NEEDS, environment) == gone
    assert secret_variables(CONTROL_NEEDS, environment) == gone | {"CORRAL_DATABASE"}


def test_children_get_flags_as_variables_and_the_file_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "corral.toml", "")
    sources = gather(
        {"--config": "corral.toml", "--port": "9", "--log-format": "json"}, {"CORRAL_PORT": "8", "CORRAL_KEY": "k"}
    )
    assert child_environment(sources, {"CORRAL_HOST": "::1"}) == {
        "CORRAL_CONFIG": str(tmp_path / "corral.toml"),
        "CORRAL_HOST": "::1",
        "CORRAL_KEY": "k",
        "CORRAL_LOG_FORMAT": "json",
        "CORRAL_PORT": "9",
    }
