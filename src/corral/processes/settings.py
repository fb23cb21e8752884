"""The sections of settings, and the only reader of the real environment.

A component declares its section in its config dataclass; the sections here belong to no component.
`settings_sources.py` finds values; `configs.py` turns resolved settings into configurations.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Final

from corral.base.errors import SettingInvalid
from corral.base.setting_kinds import HOST, HTTP_URL, PASSWORD, PATH, SECRET, SWITCH, duration, whole
from corral.base.settings import DATA, PREFIX, Derived, Group, PublicPort, Setting, in_data, setting, settings_of
from corral.processes.settings_sources import (
    CONFIG_FLAG,
    CONFIG_VARIABLE,
    ConfigFile,
    SettingSources,
    did_you_mean,
    read_config_file,
    variables_of,
)

WORKER_PYTHON: Final = "CORRAL_WORKER_PYTHON"
MACHINE_SETTINGS: Final = frozenset({"capability", "capability_run_file", "data", "backends", "system_backends"})
"""Worker settings that decide which backends are on this machine, and which fit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings(PublicPort):
    """The settings of `corral up` itself. Its frontend and workers read the environment and the same file."""

    section: ClassVar[str] = "up"
    title: ClassVar[str] = "`corral up`"

    data: Path = setting(
        PATH,
        "Directory for everything: database, keys, NATS, models, one folder per worker, and `up.json` for scripts.",
        default=DATA,
    )
    workers: int = setting(
        whole(0, 100),
        "How many workers to start; 0 for none. 2, so that the first look shows a fleet and not a machine.",
        default=2,
    )
    nats_host: str = setting(
        HOST,
        """Address the embedded NATS server listens on. Loopback by default; set it to let workers on other machines
        in, together with `host`.""",
        default="127.0.0.1",
    )
    nats_port: int | None = setting(
        whole(1, 65535),
        "Port the embedded NATS server listens on. The one of last time is kept, so that workers find it again.",
        default=None,
        default_text="that of last time, else 4222, else a free one",
    )
    heartbeat_interval: timedelta = setting(
        duration("100ms", "1h"),
        """Time between heartbeats of the workers. 2 s: on one machine it costs nothing, and a dead worker shows at
        once.""",
        default="2s",
    )
    models: Path = setting(
        PATH,
        "Directory of the model files, which frontend and workers share.",
        env="CORRAL_MODELS_PATH",
        aliases=(
            "LOCALAI_MODELS_PATH",
            "MODELS_PATH",
        ),
        default=in_data("models"),
    )
    new_fleet: bool = setting(
        SWITCH,
        """Make a new fleet although the data directory has keys of one whose database is missing: see the setting of
        the frontend.""",
        default=False,
    )
    provisions: Path = setting(
        PATH,
        """What a new fleet is given, in a directory: `first-model.gguf`, and in `backends` images of our own backends.
        Set-up (`make setup`, or the first `make up`) puts it beside the program, so that `corral up` and `make up` give
        the same fleet. What is not there is done without.""",
        default=Derived("`share/corral` beside the program", lambda _, __: Path(sys.prefix) / "share" / "corral"),
    )
    first_model: Path | None = setting(
        PATH,
        """A GGUF file that a new fleet without models starts with, under the name smollm2.""",
        default=None,
        default_text="the one of the provisions, if there is one",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How commands such as `corral nodes` find their frontend."""

    section: ClassVar[str] = "client"
    title: ClassVar[str] = "Commands that talk to a frontend"

    url: str = setting(
        HTTP_URL,
        "URL of the frontend. By default the one that `corral up` wrote into `up.json` in the data directory.",
        default="",
        default_text="from `up.json`",
    )
    key: str = setting(
        SECRET,
        "API key to present. By default the one in the key file, or in `up.json`.",
        default="",
        default_text="from `up.json`",
        secret=True,
    )
    key_file: Path | None = setting(
        PATH,
        "File that holds the API key, mode 0600. A key is never a flag: others could read it in the process list.",
        default=None,
    )
    data: Path = setting(
        PATH,
        "Data directory of a running `corral up`, whose `up.json` tells the URL and the key.",
        default=DATA,
    )
    timeout: timedelta = setting(
        duration("100ms", "1h"),
        "How long to wait for an answer. 30 s: longer than any answer takes that is still on its way.",
        default="30s",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningSettings:
    """How images of backends are signed."""

    section: ClassVar[str] = "signing"
    title: ClassVar[str] = "Signing backends"

    password: str = setting(
        PASSWORD,
        """Password of the private key that `corral backend keygen` makes and `corral backend sign` uses. By default
        the person at the terminal is asked. It is never a flag: others could read it in the process list.""",
        env="CORRAL_SIGNING_PASSWORD",
        aliases=("COSIGN_PASSWORD",),
        default="",
        default_text="asked at the terminal",
        secret=True,
    )


_SECTIONS: Final[Mapping[str, str]] = {
    "frontend": "corral.frontend.config:ControlConfig",
    "gateway": "corral.gateway.config:GatewayConfig",
    "worker": "corral.worker.config:WorkerConfig",
    "up": "corral.processes.settings:UpSettings",
    "client": "corral.processes.settings:ClientSettings",
    "gallery": "corral.galleries.config:GalleriesConfig",
    "images": "corral.oci.config:ImagesConfig",
    "hubs": "corral.hubs.config:HubsConfig",
    "signing": "corral.processes.settings:SigningSettings",
    "log": "corral.base.logs:LogOutput",
}
"""Where each section is declared. Imported on demand, so that a command does not pay for other sections."""

SECTIONS: Final = tuple(_SECTIONS)
CONTROL_NEEDS: Final = ("frontend", "gallery", "images", "hubs", "log")
GATEWAY_NEEDS: Final = ("gateway", "log")
WORKER_NEEDS: Final = ("worker", "gallery", "images", "log")
"""The sections that each kind of process reads: a child gets only their variables."""

_PREFIXES: Final = (PREFIX, "LOCALAI_")

ACCEPTED_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "LOCALAI_DISTRIBUTED": "Corral is always distributed",
    "LOCALAI_AUTH": "every route needs a key already",
    "LOCALAI_GRPC_AUTH_TOKEN": "set by the worker for the backends it starts",
    "LOCALAI_FILE_TRANSFER_TIMEOUT": "without effect in LocalAI too",
    "LOCALAI_FILE_TRANSFER_RETRIES": "without effect in LocalAI too",
    "LOCALAI_PREFETCH_MODELS": "Corral does not fetch models yet",
    "PREFETCH_MODELS": "Corral does not fetch models yet",
    "LOCALAI_DISTRIBUTED_SHARED_MODELS": "not needed: a node that shares the models directory is sent nothing",
    "LOCALAI_DISTRIBUTED_DISK_HEADROOM_CHECK": "Corral makes room on nodes, and keeps node_min_free free",
}
"""LocalAI's variables that are accepted without effect, and why."""

SECRET_VARIABLES: Final = frozenset(
    {
        "BACKEND_GALLERIES",
        "CORRAL_ADMIN_KEYS",
        "CORRAL_BACKEND_GALLERIES",
        "CORRAL_CONTROL_URL",
        "CORRAL_DATABASE",
        "CORRAL_GATEWAY_KEY",
        "CORRAL_HF_TOKEN",
        "CORRAL_HF_URL",
        "CORRAL_JOIN_CODE",
        "CORRAL_KEY",
        "CORRAL_MODEL_GALLERIES",
        "CORRAL_NATS_ACCOUNT_SEED",
        "CORRAL_NATS_JWT",
        "CORRAL_NATS_OPERATOR_SEED",
        "CORRAL_NATS_SEED",
        "CORRAL_NATS_URL",
        "CORRAL_OCI_TOKEN",
        "CORRAL_OCI_URL",
        "CORRAL_OLLAMA_TOKEN",
        "CORRAL_OLLAMA_URL",
        "CORRAL_PUBLIC_URL",
        "CORRAL_REGISTER_TO",
        "CORRAL_REGISTRATION_TOKEN",
        "CORRAL_REGISTRY_AUTH",
        "CORRAL_SECRETS_KEY",
        "CORRAL_SIGNING_PASSWORD",
        "CORRAL_STORAGE_ACCESS_KEY",
        "CORRAL_STORAGE_SECRET_KEY",
        "CORRAL_STORAGE_URL",
        "CORRAL_TRUSTED_REGISTRATION_TOKEN",
        "CORRAL_URL",
        "COSIGN_PASSWORD",
        "DOCKER_AUTH_CONFIG",
        "GALLERIES",
        "HF_ENDPOINT",
        "HF",
        "HF_MIRROR",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "LOCALAI_API_KEY",
        "LOCALAI_AUTH_DATABASE_URL",
        "LOCALAI_BACKEND_GALLERIES",
        "LOCALAI_GALLERIES",
        "LOCALAI_NATS_ACCOUNT_SEED",
        "LOCALAI_NATS_JWT",
        "LOCALAI_NATS_SERVICE_JWT",
        "LOCALAI_NATS_SERVICE_SEED",
        "LOCALAI_NATS_URL",
        "LOCALAI_NATS_USER_SEED",
        "LOCALAI_REGISTER_TO",
        "LOCALAI_REGISTRATION_TOKEN",
        "LOCALAI_STORAGE_ACCESS_KEY",
        "LOCALAI_STORAGE_SECRET_KEY",
        "LOCALAI_STORAGE_URL",
    }
)
"""Variables of all settings that are secrets or may hold one. Listed, because a worker hides them from its backends and
would otherwise import every section for their names; a test compares the list with the settings."""

_READ_BY_ENGINES: Final = frozenset({"HF_ENDPOINT", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
"""Variables of the hub that engines read as well, and that open nothing of the fleet. A worker decides by its own list
which of these its backends get."""


@cache
def section(name: str) -> type[Group]:
    """Return the dataclass of a section."""
    module, _, attribute = _SECTIONS[name].partition(":")
    group: type[Group] = getattr(import_module(module), attribute)
    return group


def all_sections() -> tuple[type[Group], ...]:
    """Return every section, in the order of the reference."""
    return tuple(section(name) for name in SECTIONS)


def all_settings() -> list[Setting]:
    """Return the settings of every section."""
    return [setting for group in all_sections() for setting in settings_of(group)]


def gather(flags: Mapping[str, str], environment: Mapping[str, str] | None = None) -> SettingSources:
    """Collect all sources and check the file. `environment` defaults to this process's own."""
    variables = dict(os.environ if environment is None else environment)
    file = _config_file(flags, variables)
    sources = SettingSources(flags=flags, environment=variables, file=file)
    if file.path is not None and file.path.stat().st_mode & 0o077:  # others may read it
        settings = [setting for name in file.sections for setting in settings_of(section(name))]
        secrets = [each.name for each in settings if each.secret and each.name in file.sections[each.section]]
        if secrets:
            problem = f"{file.path} holds {', '.join(secrets)} and may be read by others"
            sources.warnings.append(f"{problem}; run: chmod 600 {file.path}")
    return sources


def _config_file(flags: Mapping[str, str], environment: Mapping[str, str]) -> ConfigFile:
    if CONFIG_FLAG in flags:
        text, origin = flags[CONFIG_FLAG], f"the flag {CONFIG_FLAG}"
    elif environment.get(CONFIG_VARIABLE):
        text, origin = environment[CONFIG_VARIABLE], f"the environment variable {CONFIG_VARIABLE}"
    else:
        return ConfigFile()
    try:
        path = PATH.read(text)
    except ValueError as error:
        raise SettingInvalid("config", f"{text!a} from {origin} cannot be used; allowed is a path") from error
    return read_config_file(path, SECTIONS, section, origin=origin)


def known_variables() -> set[str]:
    """Return every environment variable that some process reads."""
    return variables_of(all_sections()) | {CONFIG_VARIABLE}


def _unknown_variables(environment: Mapping[str, str], likely: Sequence[str] = ()) -> list[str]:
    """Return variables with our prefix that nothing reads. Imports no more sections than needed."""
    unknown = {name for name in environment if name.startswith(PREFIX)} - {CONFIG_VARIABLE}
    for name in (*likely, *SECTIONS):
        if unknown:
            unknown -= variables_of([section(name)])
    return sorted(unknown)


def variable_warnings(sources: SettingSources, likely: Sequence[str] = ()) -> list[str]:
    """Return a warning for each variable with our prefix that nothing reads. Not an error: platforms inject their own.

    The likely sections are checked first.
    """
    return [
        f"the environment variable {name} is unknown and ignored{did_you_mean(name, sorted(known_variables()))}"
        for name in _unknown_variables(sources.environment, likely)
    ]


def child_environment(
    sources: SettingSources, changes: Mapping[str, str] | None = None, *, needs: Sequence[str] = SECTIONS
) -> dict[str, str]:
    """Return the environment of a child process: the settings of the sections that it needs, with some changed.

    Flags become variables, so that no command line carries values. The child gets no secrets that it does not need,
    such as passwords of the database and of NATS.
    """
    needless = variables_of(all_sections()) - variables_of([section(name) for name in needs])
    dropped = needless.union(_unknown_variables(sources.environment))
    flags = {setting.env[0]: sources.flags[setting.flag] for setting in all_settings() if setting.flag in sources.flags}
    inherited = {**sources.environment, **flags}
    if sources.file.path is not None:
        inherited[CONFIG_VARIABLE] = str(sources.file.path.absolute())
    return {**{name: value for name, value in inherited.items() if name not in dropped}, **(changes or {})}


def listed_environment(
    sources: SettingSources, changes: Mapping[str, str] | None = None, *, needs: Sequence[str]
) -> dict[str, str]:
    """Return the environment of a child that gets nothing but the settings of the sections that it needs, with some
    changed, and what every program wants to know of its machine."""
    from corral.base.disclosure import basic_environment

    allowed = variables_of([section(name) for name in needs]) | {CONFIG_VARIABLE}
    whole = child_environment(sources, needs=needs)
    section_variables = {name: value for name, value in whole.items() if name in allowed}
    return {**basic_environment(whole), **section_variables, **(changes or {})}


def hide_secrets(sections: Iterable[str]) -> None:
    """Forget the secrets of these sections, and let nobody look into this process any more.

    Code that needs a secret has read it by now. Children are given what they need, and never this process's
    environment.
    """
    from corral.base.disclosure import blot_out, refuse_inspection

    secrets = secret_variables(sections, os.environ)
    for name in secrets:
        del os.environ[name]
    blot_out(secrets)
    refuse_inspection()


def secret_variables(sections: Iterable[str], environment: Mapping[str, str]) -> set[str]:
    """Return the variables of an environment that hold secrets: those of settings of these sections, and others of ours
    and of LocalAI's whose names say so."""
    from corral.base.logs import names_secret

    variables = {
        name
        for group in sections
        for setting in settings_of(section(group))
        if is_secret(setting)
        for name in setting.env
    }
    prefixed = (name for name in environment if name.startswith(_PREFIXES))
    return {name for name in environment if name in variables} | {name for name in prefixed if names_secret(name)}


def is_secret(setting: Setting) -> bool:
    """Whether its values may be secrets, as URLs with passwords are."""
    return setting.secret or setting.kind.holds_password is not None


def without_settings(environment: Mapping[str, str], group: str, names: frozenset[str]) -> dict[str, str]:
    """Return the environment without these settings of a section, under any of their variables."""
    unwanted = {
        variable for setting in settings_of(section(group)) if setting.name in names for variable in setting.env
    }
    return {name: value for name, value in environment.items() if name not in unwanted}


def backend_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the worker's environment without anything that gives a backend, or its log, access to the fleet.

    Adds the worker's own Python, for backends with packages that find no other one.
    """
    withheld = SECRET_VARIABLES - _READ_BY_ENGINES
    passed_on = {name: value for name, value in environment.items() if name not in withheld}
    return {WORKER_PYTHON: sys.executable, **passed_on}
