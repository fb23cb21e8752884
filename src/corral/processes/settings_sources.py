"""Finds the value of a setting: flag, then environment, then file, then default.

Knows no setting by name. An invalid value is refused with one sentence that names the setting, the value, its
source and what is allowed; values of secrets are never included.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from corral.base.errors import SettingInvalid
from corral.base.setting_kinds import SettingKind, Unforgivable
from corral.base.settings import (
    Declared,
    Derived,
    Group,
    Inner,
    Required,
    Setting,
    SettingsPart,
    declared_in,
    settings_of,
)

G = TypeVar("G", bound=Group)
P = TypeVar("P", bound=SettingsPart)
CONFIG_FLAG: Final = "--config"
CONFIG_VARIABLE: Final = "CORRAL_CONFIG"
_MAX_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A parsed TOML file; without one, empty."""

    path: Path | None = None
    sections: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSources:
    """All sources of values, and warnings about them."""

    flags: Mapping[str, str] = field(default_factory=dict)
    """The given flags, as text."""
    environment: Mapping[str, str] = field(default_factory=dict)
    file: ConfigFile = field(default_factory=ConfigFile)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A value as written in its source."""

    raw: object
    origin: str
    is_foreign: bool = False
    forgiving: bool = False


def resolve(group: type[G], sources: SettingSources, *, without: frozenset[str] = frozenset()) -> G:
    """Fill a section. Raise SettingInvalid for the first invalid value. Empty text counts as unset."""
    values: dict[str, object] = {}  # by setting name; defaults may depend on values before them

    def fill(part: type[P], fields: Iterable[Declared]) -> P:
        arguments: dict[str, object] = {}
        for declaration in fields:
            content = declaration.content
            if isinstance(content, Inner):
                arguments[declaration.field] = fill(content.part, content.declared)
            else:
                value = "" if content.name in without else _value(content, sources, values)
                arguments[declaration.field] = values[content.name] = value
        return part(**arguments)

    return fill(group, declared_in(group))


def _value(setting: Setting, sources: SettingSources, values: Mapping[str, object]) -> object:
    for candidate in _candidates(setting, sources):
        try:
            return _read(setting, candidate, sources.warnings)
        except SettingInvalid as error:
            if not candidate.forgiving or isinstance(error, Unforgivable):
                raise
            sources.warnings.append(f"{error}; going on with the next source, as LocalAI does")
    if isinstance(setting.default, Required):
        flag = f"the flag {setting.flag} or " if setting.flag else ""
        problem = f"a value is needed; give {flag}the environment variable {setting.env[0]}: {setting.kind.allowed}"
        raise SettingInvalid(setting.name, problem)
    if isinstance(setting.default, Derived):
        return setting.default.compute(sources.environment, values)
    return setting.default


def _candidates(setting: Setting, sources: SettingSources) -> Iterator[_Candidate]:
    """Yield the values of all sources, by precedence."""
    if setting.flag in sources.flags:
        text = sources.flags[setting.flag]
        if setting.kind.holds_password is not None and setting.kind.holds_password(text):
            raise SettingInvalid(
                setting.name,
                f"the flag {setting.flag} carries a password, which others on this machine could read in the process "
                f"list; set the environment variable {setting.env[0]} or write it into a file for {CONFIG_FLAG}",
            )
        yield _Candidate(text, f"the flag {setting.flag}")
    for name in setting.env:
        if text := sources.environment.get(name, ""):
            yield _Candidate(
                text,
                f"the environment variable {name}",
                is_foreign=name in setting.foreign_env,
                forgiving=name in setting.forgiving_env,
            )
    section = sources.file.sections.get(setting.section, {})
    if setting.name in section:
        yield _Candidate(section[setting.name], f"{setting.name} in section [{setting.section}] of {sources.file.path}")


def _read(setting: Setting, candidate: _Candidate, warnings: list[str]) -> object:
    try:
        try:
            return _read_whole(setting.kind, candidate.raw)
        except ValueError:
            if not candidate.is_foreign or setting.kind.salvage is None:
                raise
        value, problem = setting.kind.salvage(str(candidate.raw))
        warnings.append(f"{setting.name}: of {candidate.origin}, {problem}")
        return value
    except ValueError:
        text = "the value" if setting.secret else f'"{_shown(setting, candidate.raw)}"'
        problem = f"{text} from {candidate.origin} cannot be used; allowed is {setting.kind.allowed}"
        # No cause: it may contain the value of a secret.
        raise SettingInvalid(setting.name, problem) from None


def _read_whole(kind: SettingKind[Any], raw: object) -> object:
    """Raise ValueError for what the kind cannot read."""
    if isinstance(raw, Mapping):
        if kind.read_table is None:
            raise ValueError
        return kind.read_table(raw)
    if isinstance(raw, list) and kind.read_tables is not None:
        return kind.read_tables(raw)
    return kind.read(_as_text(raw))


def _as_text(raw: object) -> str:
    """Convert a value of the file to its form on a command line."""
    if isinstance(raw, str):
        return raw
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, int | float):
        return str(raw)
    if isinstance(raw, list) and all(isinstance(item, str) and "," not in item for item in raw):
        return ",".join(raw)
    raise ValueError


def _shown(setting: Setting, raw: object) -> str:
    try:
        text = str(raw).lower() if isinstance(raw, bool) else str(raw)
    except ValueError:  # too many digits for Python to print
        text = "a huge number"
    return printable(setting.kind.shown(text))


def printable(text: str) -> str:
    """Return the text for a message: on one line, and shortened."""
    plain = text if text.isprintable() else ascii(text)[1:-1]
    return plain if len(plain) <= _MAX_SHOWN else plain[:_MAX_SHOWN] + "…"


def read_config_file(
    path: Path, sections: Sequence[str], section_of: Callable[[str], type[Group]], *, origin: str
) -> ConfigFile:
    """Parse a file, and refuse unknown sections and keys, whichever command reads it."""
    document = _parse_toml(path, origin)
    for section, content in document.items():
        if section not in sections:
            problem = f"{path} has an unknown section or key {printable(section)}{_hint(section, sections)}"
            raise SettingInvalid(printable(section), problem)
        if not isinstance(content, dict):
            raise SettingInvalid(section, f"{path} must have a section [{section}] here, not a value")
        valid_keys = [setting.name for setting in settings_of(section_of(section))]
        for key in content:
            if key not in valid_keys:
                problem = f"{path} has an unknown key in section [{section}]{_hint(key, valid_keys)}"
                raise SettingInvalid(printable(key), problem)
    return ConfigFile(path, document)


def _parse_toml(path: Path, origin: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingInvalid("config", f"cannot read {path} from {origin}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingInvalid("config", f"{path} from {origin} is not UTF-8 text") from error
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        detail = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "it cannot be parsed"
        raise SettingInvalid("config", f"{path} from {origin} is not valid TOML: {detail}") from error


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return the suggestion at the end of a message about an unknown word; empty if nothing is similar."""
    close = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.75)
    return f"; did you mean {close[0]}?" if close else ""


def _hint(word: str, candidates: Iterable[str]) -> str:
    words = list(candidates)
    return did_you_mean(word, words) or f"; known are {', '.join(words)}"


def variables_of(groups: Iterable[type[Group]]) -> set[str]:
    """Return the environment variables of all settings of some sections."""
    return {name for group in groups for setting in settings_of(group) for name in setting.env}
