"""Where settings come from, which source wins, and what is said when a value cannot be used."""

from datetime import timedelta
from pathlib import Path

import pytest

from corral.app.settings import (
    ClientSettings,
    FrontendSettings,
    GallerySettings,
    ImageSettings,
    LogSettings,
    UpSettings,
    WorkerSettings,
    backend_environment,
    child_environment,
    control_config,
    galleries_config,
    gather,
    images_config,
    machine_config,
    resolve,
    variable_warnings,
    worker_config,
)
from corral.app.settings_sources import known_variables, settings_of
from corral.app.settings_table import ACCEPTED_WITHOUT_EFFECT, GROUPS, SigningSettings
from corral.base.errors import SettingInvalid

HOME = {"HOME": "/home/someone"}
FRONTEND = {**HOME, "CORRAL_NATS_URL": "nats://bus:4222"}
WORKER = {**FRONTEND, "CORRAL_REGISTER_TO": "http://frontend:8080"}

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


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return str(path)


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "corral.toml", "[frontend]\nport = 1\nhost = '10.0.0.1'\nunhealthy_after = 4\n")
    sources = gather({"--port": "3", "--config": file}, {**FRONTEND, "CORRAL_PORT": "2", "CORRAL_HOST": "10.0.0.2"})

    settings = resolve(FrontendSettings, sources)

    assert (settings.port, settings.host, settings.unhealthy_after) == (3, "10.0.0.2", 4)


def test_our_own_variable_wins_over_localais() -> None:
    both = {**FRONTEND, "CORRAL_AUTO_APPROVE": "false", "LOCALAI_AUTO_APPROVE_NODES": "true"}
    assert resolve(FrontendSettings, gather({}, both)).auto_approve is False
    del both["CORRAL_AUTO_APPROVE"]
    assert resolve(FrontendSettings, gather({}, both)).auto_approve is True


def test_an_empty_variable_counts_as_not_set() -> None:
    assert resolve(FrontendSettings, gather({}, {**FRONTEND, "CORRAL_PORT": ""})).port == 8080


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
    settings = resolve(FrontendSettings, gather({"--data": "/srv/corral"}, FRONTEND))
    assert settings.database_url == "sqlite:////srv/corral/corral.db"
    assert settings.secrets_key_path == Path("/srv/corral/secrets.key")
    other = resolve(FrontendSettings, gather({"--database": "postgresql://someone@db/corral"}, FRONTEND))
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
        resolve(FrontendSettings, gather(flags, {**FRONTEND, **environment}))
    assert str(refused.value) == sentence


def test_a_missing_value_that_is_needed_is_asked_for() -> None:
    with pytest.raises(SettingInvalid, match="nats_url: a value is needed; give the flag --nats or the environment"):
        resolve(FrontendSettings, gather({}, HOME))


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
        resolve(FrontendSettings, gather({"--database": url}, FRONTEND))
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
    for group in (FrontendSettings, WorkerSettings, ClientSettings):
        assert "hidden" not in repr(resolve(group, sources))
    assert "hidden" not in repr(control_config(resolve(FrontendSettings, sources)))
    assert "hidden" not in repr(worker_config(resolve(WorkerSettings, sources), sources.environment))


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
    assert name in known_variables(GROUPS) or name in ACCEPTED_WITHOUT_EFFECT


def test_no_variable_is_both_used_and_without_effect() -> None:
    assert known_variables(GROUPS) & set(ACCEPTED_WITHOUT_EFFECT) == set()


class TestFile:
    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("[fronted]\n", "has an unknown section or key fronted; did you mean frontend?"),
            ("[frontend]\nprot = 1\n", "has an unknown key in section [frontend]; did you mean port?"),
            ("[worker]\nnonsense = 1\n", "has an unknown key in section [worker]; known are register_to,"),
            (
                "port = 1\n",
                "has an unknown section or key port; "
                "known are frontend, gateway, worker, up, client, gallery, images, signing, log",
            ),
            ("frontend = 1\n", "must have a section [frontend] here, not a value"),
            ("[frontend\n", "is not valid TOML"),
            ("[frontend]\nport = 1\nport = 2\n", "is not valid TOML"),
        ],
    )
    def test_what_nobody_knows_stops_every_command(self, tmp_path: Path, text: str, sentence: str) -> None:
        file = write(tmp_path / "corral.toml", text)
        with pytest.raises(SettingInvalid) as refused:
            gather({"--config": file}, FRONTEND)
        assert sentence in str(refused.value)
        assert file in str(refused.value)

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("port = 'x'", 'port: "x" from port in section [frontend] of'),
            ("port = true", 'port: "true" from port in section [frontend] of'),
            ("port = [1]", 'port: "[1]" from port in section [frontend] of'),
            ("port = {a = 1}", "port: \"{'a': 1}\" from port in section [frontend] of"),
            ("registration_token = 'a b'", "registration_token: the value from registration_token in section"),
        ],
    )
    def test_a_bad_value_names_its_place(self, tmp_path: Path, text: str, sentence: str) -> None:
        file = write(tmp_path / "corral.toml", f"[frontend]\n{text}\n")
        with pytest.raises(SettingInvalid) as refused:
            resolve(FrontendSettings, gather({"--config": file}, FRONTEND))
        assert str(refused.value).startswith(sentence)

    def test_native_types_are_read(self, tmp_path: Path) -> None:
        text = """
        [worker]
        register_to = ["http://one:8080", "http://two:8080"]
        nats_url = "nats://someone:secret@bus"
        labels = {zone = "a,b", disk = "fast"}
        max_port = 60000
        heartbeat_interval = 2.5
        [log]
        level = "debug"
        """
        sources = gather({"--config": write(tmp_path / "corral.toml", text)}, HOME)
        settings = resolve(WorkerSettings, sources)
        assert settings.register_to == ("http://one:8080", "http://two:8080")
        assert settings.labels == {"zone": "a,b", "disk": "fast"}
        assert settings.heartbeat_interval == timedelta(seconds=2.5)
        assert settings.max_port == 60000
        assert resolve(LogSettings, sources).level == "debug"

    def test_the_variable_names_a_file_too(self, tmp_path: Path) -> None:
        file = write(tmp_path / "corral.toml", "[frontend]\nport = 7\n")
        assert resolve(FrontendSettings, gather({}, {**FRONTEND, "CORRAL_CONFIG": file})).port == 7

    def test_a_file_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SettingInvalid, match=r"config: cannot read .* from the flag --config: No such file"):
            gather({"--config": str(tmp_path / "none.toml")}, FRONTEND)

    def test_a_file_that_is_not_text_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "corral.toml").write_bytes(b"\xff\xfe")
        with pytest.raises(SettingInvalid, match="is not UTF-8 text"):
            gather({"--config": str(tmp_path / "corral.toml")}, FRONTEND)

    def test_an_open_file_with_secrets_is_warned_about(self, tmp_path: Path) -> None:
        path = tmp_path / "corral.toml"
        file = write(path, "[frontend]\nregistration_token = 'x'\nport = 1\n")
        assert gather({"--config": file}, FRONTEND).warnings == []
        path.chmod(0o644)
        [warning] = gather({"--config": file}, FRONTEND).warnings
        assert warning == f"{file} holds registration_token and may be read by others; run: chmod 600 {file}"


class TestForgiving:
    def test_localais_interval_falls_back_as_localai_does(self) -> None:
        sources = gather({}, {**WORKER, "LOCALAI_HEARTBEAT_INTERVAL": "soon"})
        assert resolve(WorkerSettings, sources).heartbeat_interval == timedelta(seconds=10)
        [warning] = sources.warnings
        assert "LOCALAI_HEARTBEAT_INTERVAL" in warning

    def test_our_interval_is_an_error(self) -> None:
        with pytest.raises(SettingInvalid, match="heartbeat_interval"):
            resolve(WorkerSettings, gather({}, {**WORKER, "CORRAL_HEARTBEAT_INTERVAL": "soon"}))

    def test_localais_address_falls_back_to_the_next_source_of_the_base_port(self) -> None:
        sources = gather({}, {**WORKER, "LOCALAI_ADDR": "host:99999", "LOCALAI_SERVE_ADDR": "0.0.0.0:6000"})
        settings = resolve(WorkerSettings, sources)
        assert (settings.address, settings.serve_address) == ("", "0.0.0.0:6000")
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


class TestConfigurations:
    def test_control_gets_every_setting(self) -> None:
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
        config = control_config(resolve(FrontendSettings, gather({"--data": "/srv"}, environment)))
        assert (config.liveness.unhealthy_after, config.liveness.offline_after) == (2, 5)
        assert config.event_retention == timedelta(days=7)
        assert config.max_body == 65536
        assert config.metrics_public
        assert config.instance_id == "blue"
        assert config.registration_token == "join"
        assert config.bus.url == "nats://bus:4222"
        assert config.secrets_key_file == Path("/srv/secrets.key")

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
        ],
    )
    def test_settings_that_contradict_each_other_are_refused(self, environment: dict[str, str], sentence: str) -> None:
        with pytest.raises(SettingInvalid) as refused:
            control_config(resolve(FrontendSettings, gather({}, {**FRONTEND, **environment})))
        assert str(refused.value) == sentence

    def test_a_localai_environment_configures_a_worker(self) -> None:
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
        config = worker_config(resolve(WorkerSettings, gather({}, environment)), environment)
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
    def test_a_worker_may_be_told_not_to_start_without_a_token(self, name: str) -> None:
        environment = {
            "LOCALAI_REGISTER_TO": "http://frontend:8080",
            "LOCALAI_NATS_URL": "nats://bus:4222",
            name: "true",
        }
        with pytest.raises(SettingInvalid, match="registration_token: is needed"):
            worker_config(resolve(WorkerSettings, gather({}, environment)), environment)
        environment["LOCALAI_REGISTRATION_TOKEN"] = "join"
        assert worker_config(resolve(WorkerSettings, gather({}, environment)), environment)

    def test_a_localai_environment_names_an_object_storage(self) -> None:
        storage = {
            "LOCALAI_STORAGE_URL": "http://minio:9000",
            "LOCALAI_STORAGE_ACCESS_KEY": "access",
            "LOCALAI_STORAGE_SECRET_KEY": "hidden",
        }
        config = worker_config(resolve(WorkerSettings, gather({}, {**WORKER, **storage})), {**WORKER, **storage})

        assert config.storage is not None
        assert (config.storage.url, config.storage.bucket) == ("http://minio:9000", "localai")
        assert (config.storage.access_key, config.storage.secret_key) == ("access", "hidden")
        assert config.backend_environment.keys() & storage.keys() == set()

    def test_half_of_the_keys_of_an_object_storage_are_refused(self) -> None:
        environment = {**WORKER, "CORRAL_STORAGE_URL": "http://minio:9000", "CORRAL_STORAGE_ACCESS_KEY": "access"}
        with pytest.raises(SettingInvalid, match="storage_secret_key: is needed beside storage_access_key"):
            worker_config(resolve(WorkerSettings, gather({}, environment)), environment)


class TestGalleries:
    LIST = '[{"name": "mine", "url": "https://example.org/i.yaml", "mirrors": ["file:///srv/i.yaml"]}]'

    def test_by_default_there_is_our_own_and_localai_s(self) -> None:
        found = galleries_config(resolve(GallerySettings, gather({}, {})))
        assert [source.name for source in found.sources] == ["corral", "localai"]
        assert found.sources[1].urls == (
            "https://index.localai.io/backends",
            "github:mudler/LocalAI/backend/index.yaml@master",
        )

    @pytest.mark.parametrize("name", ["CORRAL_BACKEND_GALLERIES", "LOCALAI_BACKEND_GALLERIES", "BACKEND_GALLERIES"])
    def test_a_list_comes_from_any_of_its_variables(self, name: str) -> None:
        (source,) = resolve(GallerySettings, gather({}, {name: self.LIST})).backend_galleries
        assert (source.name, source.urls) == ("mine", ("https://example.org/i.yaml", "file:///srv/i.yaml"))

    def test_an_empty_list_is_no_gallery_at_all(self) -> None:
        assert resolve(GallerySettings, gather({}, {"CORRAL_BACKEND_GALLERIES": "[]"})).backend_galleries == ()

    def test_a_file_may_write_tables(self, tmp_path: Path) -> None:
        file = tmp_path / "corral.toml"
        file.write_text('[[gallery.backend_galleries]]\nname = "mine"\nurl = "corral:builtin"\n')
        (source,) = resolve(GallerySettings, gather({"--config": str(file)}, {})).backend_galleries
        assert (source.name, source.url) == ("mine", "corral:builtin")

    @pytest.mark.parametrize(
        "text",
        [
            "nonsense",
            "{}",
            '"text"',
            '[{"url": 1}]',
            '[{"name": "x"}]',
            '[{"name": "x", "url": "/srv/index.yaml"}]',
            '[{"name": "x", "url": "https://a/b", "mirrors": ["ftp://c"]}]',
            '[{"name": "a@b", "url": "https://a/b"}]',
            '[{"name": "x", "url": "https://a/b"}, {"name": "X", "url": "https://a/c"}]',
        ],
    )
    def test_what_is_no_list_of_galleries_is_refused(self, text: str) -> None:
        with pytest.raises(SettingInvalid, match=r"backend_galleries: .* cannot be used; allowed is a JSON list"):
            resolve(GallerySettings, gather({"--backend-galleries": text}, {}))

    @pytest.mark.parametrize("name", ["CORRAL_BACKEND_GALLERIES", "LOCALAI_BACKEND_GALLERIES"])
    def test_a_policy_that_cannot_be_used_is_told_with_its_field(self, name: str) -> None:
        text = '[{"name": "mine", "url": "https://a/b", "verification": {"issuer": "x", "identity_regex": "("}}]'
        with pytest.raises(
            SettingInvalid, match=r"backend_galleries: the gallery 'mine': verification\.identity_regex: "
        ):
            resolve(GallerySettings, gather({}, {name: text}))

    def test_nonsense_in_localai_s_variable_is_only_warned_about(self) -> None:
        sources = gather({}, {"LOCALAI_BACKEND_GALLERIES": "nonsense"})
        assert len(resolve(GallerySettings, sources).backend_galleries) == 2
        assert "going on with the next source" in sources.warnings[0]

    def test_a_login_is_neither_a_flag_nor_shown(self) -> None:
        text = '[{"name": "x", "url": "https://user:hidden@a/b"}]'
        with pytest.raises(SettingInvalid, match="carries a password") as caught:
            resolve(GallerySettings, gather({"--backend-galleries": text}, {}))
        assert "hidden" not in str(caught.value)
        found = resolve(GallerySettings, gather({}, {"CORRAL_BACKEND_GALLERIES": text}))
        assert "hidden" not in repr(found) + repr(galleries_config(found))
        bad = '[{"name": "x", "url": "ftp://user:hidden@a/b"}]'
        with pytest.raises(SettingInvalid, match="cannot be used") as caught:
            resolve(GallerySettings, gather({}, {"CORRAL_BACKEND_GALLERIES": bad}))
        assert "hidden" not in str(caught.value)

    def test_copies_are_kept_where_a_user_s_caches_are(self) -> None:
        assert str(resolve(GallerySettings, gather({}, {"HOME": "/h"})).cache) == "/h/.cache/corral/galleries"
        stated = gather({}, {"HOME": "/h", "XDG_CACHE_HOME": "/c"})
        assert str(resolve(GallerySettings, stated).cache) == "/c/corral/galleries"

    def test_this_machine_needs_no_frontend(self, tmp_path: Path) -> None:
        found = machine_config(gather({}, {"CORRAL_DATA": str(tmp_path), "CORRAL_CAPABILITY": "amd"}))
        assert found.backends == tmp_path / "backends"
        assert found.capability.forced == "amd"


class TestFiles:
    def test_a_day_and_a_minute_by_default(self) -> None:
        files = worker_config(resolve(WorkerSettings, gather({}, WORKER)), WORKER).files

        assert (files.staging_path, files.retention, files.stall_timeout) == (
            None,
            timedelta(hours=24),
            timedelta(minutes=1),
        )

    def test_from_the_environment_and_from_flags(self) -> None:
        environment = {**WORKER, "CORRAL_STAGING_PATH": "/fast/staging", "CORRAL_FILE_RETENTION": "2h"}
        files = worker_config(
            resolve(WorkerSettings, gather({"--file-stall-timeout": "5s"}, environment)), environment
        ).files

        assert (files.staging_path, files.retention, files.stall_timeout) == (
            Path("/fast/staging"),
            timedelta(hours=2),
            timedelta(seconds=5),
        )

    @pytest.mark.parametrize(
        ("variable", "value"),
        [("CORRAL_FILE_RETENTION", "1s"), ("CORRAL_FILE_RETENTION", "soon"), ("CORRAL_FILE_STALL_TIMEOUT", "0s")],
    )
    def test_what_makes_no_sense_is_named(self, variable: str, value: str) -> None:
        with pytest.raises(SettingInvalid, match=variable):
            resolve(WorkerSettings, gather({}, {**WORKER, variable: value}))


class TestImages:
    def test_how_images_are_fetched(self) -> None:
        auths = '{"auths": {"quay.io": {"username": "me", "password": "hidden"}}}'
        images = {
            "HOME": "/home/someone",
            "https_proxy": "http://proxy:3128",
            "CORRAL_PLAIN_REGISTRIES": "registry.lan:5000, other.lan",
            "CORRAL_UNPACK_MAX_BYTES": "5GiB",
            "CORRAL_UNPACK_MAX_ENTRIES": "10",
            "CORRAL_UNPACK_MAX_RATIO": "20",
            "CORRAL_PULL_PARALLEL": "5",
            "CORRAL_PULL_NICENESS": "0",
            "CORRAL_KEEP_LAYERS": "true",
            "DOCKER_AUTH_CONFIG": auths,
        }
        config = images_config(resolve(ImageSettings, gather({}, images)), images)

        assert [credential.place for credential in config.credentials] == ["quay.io"]
        assert Path("/home/someone/.docker/config.json") in config.auth_files
        assert config.network.plain_hosts == ("registry.lan:5000", "other.lan")
        assert config.network.https_proxy == "http://proxy:3128"
        limits = config.limits
        assert (limits.total_bytes, limits.entries, limits.ratio) == (5 * 1024**3, 10, 20)
        assert (config.parallel, config.niceness, config.keep_layers) == (5, 0, True)
        assert "hidden" not in repr(config)
        assert "DOCKER_AUTH_CONFIG" not in backend_environment(images)

    @pytest.mark.parametrize(
        "name", ["CORRAL_REQUIRE_BACKEND_INTEGRITY", "LOCALAI_REQUIRE_BACKEND_INTEGRITY", "REQUIRE_BACKEND_INTEGRITY"]
    )
    def test_what_is_asked_of_images(self, name: str, tmp_path: Path) -> None:
        (tmp_path / "root.json").write_text("{}")
        environment = {name: "true", "CORRAL_TRUSTED_ROOT_FILE": str(tmp_path / "root.json")}
        config = images_config(resolve(ImageSettings, gather({}, environment)), environment)
        without = images_config(resolve(ImageSettings, gather({}, {})), {})

        assert (config.require_integrity, config.trusted_root) == (True, tmp_path / "root.json")
        assert (without.require_integrity, without.trusted_root) == (False, None)

    def test_the_password_of_a_signing_key_is_not_handed_on(self) -> None:
        environment = {"CORRAL_SIGNING_PASSWORD": "open sesame"}

        assert resolve(SigningSettings, gather({}, environment)).password == "open sesame"
        assert "open sesame" not in backend_environment(environment).values()
        with pytest.raises(SettingInvalid, match="password") as caught:
            resolve(SigningSettings, gather({}, {"COSIGN_PASSWORD": "hidden\x07"}))
        assert "hidden" not in str(caught.value)

    def test_a_file_with_logins_stands_for_the_usual_places(self, tmp_path: Path) -> None:
        (tmp_path / "auth.json").write_text("{}")
        environment = {"CORRAL_REGISTRY_AUTH_FILE": str(tmp_path / "auth.json")}
        config = images_config(resolve(ImageSettings, gather({}, environment)), environment)

        assert config.auth_files == (tmp_path / "auth.json",)

    @pytest.mark.parametrize("value", ["user:secret", "{}", '{"auths": {"x": {"auth": "%secret"}}}'])
    def test_logins_that_cannot_be_read_are_refused_and_not_shown(self, value: str) -> None:
        with pytest.raises(SettingInvalid, match="registry_auth") as caught:
            resolve(ImageSettings, gather({}, {"CORRAL_REGISTRY_AUTH": value}))
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize("value", ["https://registry.lan", "a b", ",", "host:port"])
    def test_hosts_that_are_none_are_refused(self, value: str) -> None:
        with pytest.raises(SettingInvalid, match="plain_registries"):
            resolve(ImageSettings, gather({}, {"CORRAL_PLAIN_REGISTRIES": value}))
