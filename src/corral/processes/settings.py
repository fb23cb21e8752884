"""Where the settings meet the real environment. The only reader of it.

The table of settings is in `settings_table/`, the rules of precedence in `settings_sources.py`; in `configs/` settings
become what the processes are configured with.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from corral.base.errors import SettingInvalid
from corral.processes.settings_kinds import PATH
from corral.processes.settings_sources import (
    CONFIG_FLAG,
    CONFIG_VARIABLE,
    ConfigFile,
    Group,
    SettingSources,
    did_you_mean,
    handed_on,
    known_variables,
    open_secrets,
    read_config_file,
    settings_of,
    unknown_variables,
)
from corral.processes.settings_table import GROUPS

WORKER_PYTHON: Final = "CORRAL_WORKER_PYTHON"


def gather(flags: Mapping[str, str], environment: Mapping[str, str] | None = None) -> SettingSources:
    """Bring all sources together and check the file; the environment is this process's own unless one is given."""
    variables = dict(os.environ if environment is None else environment)
    file = _config_file(flags, variables)
    sources = SettingSources(flags=flags, environment=variables, file=file)
    sources.warnings.extend(open_secrets(file, GROUPS))
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
    return read_config_file(path, GROUPS, origin=origin)


def variable_warnings(sources: SettingSources) -> list[str]:
    """One sentence for each variable that looks like ours and means nothing. No error: platforms inject their own."""
    known = sorted(known_variables(GROUPS))
    return [
        f"the environment variable {name} is unknown and ignored{did_you_mean(name, known)}"
        for name in unknown_variables(sources.environment, GROUPS)
    ]


def child_environment(
    sources: SettingSources, changes: Mapping[str, str] | None = None, *, needs: Sequence[type[Group]] = GROUPS
) -> dict[str, str]:
    """What a child process is started with: the same settings of the groups that it needs, with some of them changed.

    What it has no use for, passwords of the database and of NATS among them, cannot leak from it either.
    """
    kept = {variable for group in needs for one in settings_of(group) for variable in one.env}
    dropped = {variable for group in GROUPS for one in settings_of(group) for variable in one.env} - kept
    inherited = {name: value for name, value in handed_on(sources, GROUPS).items() if name not in dropped}
    return {**inherited, **(changes or {})}


def backend_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The worker's own environment without what could give a backend, or its log, access to the fleet.

    The worker's own Python is named for backends that bring packages and find no other that fits.
    """
    own = [one for group in GROUPS for one in settings_of(group) if one.secret or one.kind.may_hold_password]
    hidden = {variable for one in own for variable in one.env}
    passed_on = {name: value for name, value in environment.items() if name not in hidden}
    return {WORKER_PYTHON: sys.executable, **passed_on}
