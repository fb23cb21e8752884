"""Where the value of a setting comes from: a flag, then the environment, then the file, then the default.

Knows no setting by name. What cannot be used is refused with one sentence that names the setting, the value, its
source and what is allowed; the values of secrets are never part of it.
"""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from corral.base.errors import SettingInvalid
from corral.processes.settings_kinds import SettingKind, Unforgivable

T = TypeVar("T")
PREFIX: Final = "CORRAL_"
CONFIG_FLAG: Final = "--config"
CONFIG_VARIABLE: Final = "CORRAL_CONFIG"
_KEY: Final = "corral.setting"
_MAX_SHOWN: Final = 80


class Group(Protocol):
    """A dataclass whose fields are settings: one section of the file."""

    section: ClassVar[str]
    title: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


G = TypeVar("G", bound=Group)


class _Required:
    """Stands where a default would be."""


REQUIRED: Final = _Required()


@dataclass(frozen=True, slots=True)
class Derived(Generic[T]):
    """A default that depends on the machine; `text` says it in the reference."""

    text: str
    compute: Callable[[Mapping[str, str]], T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """All that is known of one setting: options, messages and the reference are made of it."""

    name: str
    section: str
    kind: SettingKind[Any]
    default: Any
    default_text: str
    flag: str
    """Empty for secrets: a command line can be read by everyone on the machine."""
    env: tuple[str, ...]
    """In order of precedence; the first is ours, the others are LocalAI's."""
    forgiving_env: frozenset[str]
    """Variables of LocalAI's whose nonsense LocalAI ignores; so do we, with a warning."""
    secret: bool
    meaning: str

    @property
    def switch_flags(self) -> str:
        """Both directions of a switch, as click declares them."""
        return f"{self.flag}/--no-{self.flag.removeprefix('--')}"


def setting(  # noqa: PLR0913 - a table row, always written with keywords
    kind: SettingKind[T],
    meaning: str,
    *,
    env: Sequence[str],
    flag: str = "",
    default: object = REQUIRED,
    default_text: str = "",
    secret: bool = False,
    forgiving_env: Iterable[str] = (),
) -> Any:
    """Declare a setting as a field of its group."""
    facts = {
        "kind": kind,
        "meaning": " ".join(meaning.split()),
        "env": tuple(env),
        "flag": flag,
        "default": default,
        "default_text": default_text,
        "secret": secret,
        "forgiving_env": frozenset(forgiving_env),
    }
    shown = not secret and not kind.may_hold_password
    metadata = {_KEY: facts}
    if isinstance(default, dict):
        return field(default_factory=default.copy, repr=shown, metadata=metadata)
    plain = default if not isinstance(default, Derived | _Required) else dataclasses.MISSING
    return field(default=plain, repr=shown, metadata=metadata)


def settings_of(group: type[Group]) -> Iterator[Setting]:
    """Every setting of a group, in the order of its declaration."""
    for own in dataclasses.fields(group):
        facts = dict(own.metadata[_KEY])
        facts["default_text"] = facts["default_text"] or _default_text(facts["default"])
        yield Setting(name=own.name, section=group.section, **facts)


def _default_text(default: object) -> str:
    if isinstance(default, _Required):
        return "required"
    if isinstance(default, Derived):
        return default.text
    if default in (None, "", {}):
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    return str(default)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A parsed TOML file; without one, empty."""

    path: Path | None = None
    sections: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def origin(self, setting: Setting) -> str:
        return f"{setting.name} in section [{setting.section}] of {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSources:
    """All that values may come from, and what was odd about it."""

    flags: Mapping[str, str] = field(default_factory=dict)
    """Flag to text, for the flags that were given."""
    environment: Mapping[str, str] = field(default_factory=dict)
    file: ConfigFile = field(default_factory=ConfigFile)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _RawValue:
    """A value in the words of its source."""

    raw: object
    origin: str
    forgiving: bool = False


def resolve(group: type[G], sources: SettingSources, *, without: frozenset[str] = frozenset()) -> G:
    """Fill a group; SettingInvalid for the first value that cannot be used. Empty texts stand for those left out."""
    return group(
        **{setting.name: "" if setting.name in without else _value(setting, sources) for setting in settings_of(group)}
    )


def _value(setting: Setting, sources: SettingSources) -> object:
    for found in _candidates(setting, sources):
        try:
            return _read(setting, found)
        except SettingInvalid as error:
            if not found.forgiving or isinstance(error, Unforgivable):
                raise
            sources.warnings.append(f"{error}; going on with the next source, as LocalAI does")
    return _default(setting, sources)


def _candidates(setting: Setting, sources: SettingSources) -> Iterator[_RawValue]:
    """What the sources say, the strongest first."""
    if setting.flag in sources.flags:
        text = sources.flags[setting.flag]
        _refuse_password(setting, text)
        yield _RawValue(text, f"the flag {setting.flag}")
    for name in setting.env:
        if text := sources.environment.get(name, ""):
            yield _RawValue(text, f"the environment variable {name}", forgiving=name in setting.forgiving_env)
    section = sources.file.sections.get(setting.section, {})
    if setting.name in section:
        yield _RawValue(section[setting.name], sources.file.origin(setting))


def _read(setting: Setting, found: _RawValue) -> object:
    kind = setting.kind
    try:
        if isinstance(found.raw, Mapping):
            if kind.read_table is None:
                raise ValueError
            return kind.read_table(found.raw)
        if isinstance(found.raw, list) and kind.read_tables is not None:
            return kind.read_tables(found.raw)
        return kind.read(_as_text(found.raw))
    except ValueError:
        # Without the cause: it may hold the value, which may be a secret.
        raise refusal(setting, found.raw, found.origin) from None


def _as_text(raw: object) -> str:
    """A value of a file as it would be written on a command line."""
    if isinstance(raw, str):
        return raw
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, int | float):
        return str(raw)
    if isinstance(raw, list) and all(isinstance(item, str) and "," not in item for item in raw):
        return ",".join(raw)
    raise ValueError


def refusal(setting: Setting, raw: object, origin: str) -> SettingInvalid:
    """The sentence about a value that cannot be used."""
    value = "the value" if setting.secret else f'"{_shown(setting, raw)}"'
    return SettingInvalid(setting.name, f"{value} from {origin} cannot be used; allowed is {setting.kind.allowed}")


def _shown(setting: Setting, raw: object) -> str:
    return printable(setting.kind.shown(raw if isinstance(raw, str) else _briefly(raw)))


def printable(text: str) -> str:
    """The text as a message may quote it: on one line, and not endless."""
    plain = text if text.isprintable() else ascii(text)[1:-1]
    return plain if len(plain) <= _MAX_SHOWN else plain[:_MAX_SHOWN] + "…"


def _briefly(raw: object) -> str:
    try:
        return str(raw).lower() if isinstance(raw, bool) else str(raw)
    except ValueError:  # a number too long for Python to write out
        return "a huge number"


def _refuse_password(setting: Setting, text: str) -> None:
    holds_password = setting.kind.holds_password
    if holds_password is not None and holds_password(text):
        raise SettingInvalid(
            setting.name,
            f"the flag {setting.flag} carries a password, which others on this machine could read in the process list; "
            f"set the environment variable {setting.env[0]} or write it into a file for {CONFIG_FLAG}",
        )


def _default(setting: Setting, sources: SettingSources) -> object:
    if isinstance(setting.default, _Required):
        flag = f"the flag {setting.flag} or " if setting.flag else ""
        raise SettingInvalid(
            setting.name,
            f"a value is needed; give {flag}the environment variable {setting.env[0]}: {setting.kind.allowed}",
        )
    if isinstance(setting.default, Derived):
        return setting.default.compute(sources.environment)
    return setting.default


def read_config_file(path: Path, groups: Sequence[type[Group]], *, origin: str) -> ConfigFile:
    """Parse a file and refuse sections and keys that nobody knows, whichever command reads it."""
    known = {group.section: [setting.name for setting in settings_of(group)] for group in groups}
    document = _parse_toml(path, origin)
    for section, content in document.items():
        if section not in known:
            problem = f"{path} has an unknown section or key {printable(section)}{_hint(section, known)}"
            raise SettingInvalid(printable(section), problem)
        if not isinstance(content, dict):
            raise SettingInvalid(section, f"{path} must have a section [{section}] here, not a value")
        for key in content:
            if key not in known[section]:
                problem = f"{path} has an unknown key in section [{section}]{_hint(key, known[section])}"
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


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown word; empty when nothing is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.75)
    return f"; did you mean {close[0]}?" if close else ""


def _hint(word: str, known: Iterable[str]) -> str:
    words = list(known)
    return did_you_mean(word, words) or f"; known are {', '.join(words)}"


def open_secrets(file: ConfigFile, groups: Sequence[type[Group]]) -> list[str]:
    """A warning when a file with secrets may be read by others."""
    if file.path is None or not file.path.stat().st_mode & 0o077:
        return []
    held = [s.name for g in groups for s in settings_of(g) if s.secret and s.name in file.sections.get(g.section, {})]
    return (
        [f"{file.path} holds {', '.join(held)} and may be read by others; run: chmod 600 {file.path}"] if held else []
    )


def unknown_variables(environment: Mapping[str, str], groups: Sequence[type[Group]]) -> list[str]:
    """Variables that look like ours but mean nothing."""
    known = known_variables(groups)
    return sorted(name for name in environment if name.startswith(PREFIX) and name not in known)


def known_variables(groups: Sequence[type[Group]]) -> set[str]:
    return {name for group in groups for setting in settings_of(group) for name in setting.env} | {CONFIG_VARIABLE}


def without_settings(environment: Mapping[str, str], group: type[Group], names: frozenset[str]) -> dict[str, str]:
    """The environment as if these settings of a group had never been set in it, under any of their variables."""
    unwanted = {variable for setting in settings_of(group) if setting.name in names for variable in setting.env}
    return {name: value for name, value in environment.items() if name not in unwanted}


def handed_on(sources: SettingSources, groups: Sequence[type[Group]]) -> dict[str, str]:
    """The environment that gives a child the same settings: flags become variables, so that no argv carries values."""
    unknown = frozenset(unknown_variables(sources.environment, groups))
    environment = {name: value for name, value in sources.environment.items() if name not in unknown}
    for group in groups:
        for own in settings_of(group):
            if own.flag in sources.flags:
                environment[own.env[0]] = sources.flags[own.flag]
    if sources.file.path is not None:
        environment[CONFIG_VARIABLE] = str(sources.file.path.absolute())
    return environment
