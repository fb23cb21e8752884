"""How a component declares its settings: as fields of its frozen config dataclass.

    unused_after: timedelta = setting(duration("0s", "365d"), "How long …", default="10m")

The declaration says everything: kind, meaning, names, default. Flags, messages, the reference and completion are made
of it, and the process's settings reader fills the dataclass with what flags, environment and file say. A dataclass
that is one section of the file names it in `section`; settings may lie in dataclasses inside it. Nothing here reads
the environment.
"""

import dataclasses
import os
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from corral.base.setting_kinds import EXISTING_FILE, HOST, PORT, SettingKind

T = TypeVar("T")
PREFIX: Final = "CORRAL_"
_KEY: Final = "corral.setting"
_ALIASES: Final = "corral.aliases"
_OPTIONAL: Final = "corral.optional"


class SettingsPart(Protocol):
    """A dataclass with settings among its fields."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


class Group(SettingsPart, Protocol):
    """The dataclass of one section of the file."""

    section: ClassVar[str]
    title: ClassVar[str]


class Required:
    """Stands where a default would be."""


REQUIRED: Final = Required()


@dataclass(frozen=True, slots=True)
class Derived(Generic[T]):
    """A default that depends on the machine, or on settings of the same section that are declared before it."""

    text: str
    """Says the default in the reference."""
    compute: Callable[[Mapping[str, str], Mapping[str, Any]], T]
    """From the environment and the values so far, by the names of their settings."""
    plain: Any = REQUIRED
    """The default of the field for code that makes the dataclass itself."""


def default_data(environment: Mapping[str, str]) -> Path:
    """Where a user's programs keep their data, by the XDG rules: a relative XDG_DATA_HOME does not count."""
    stated = environment.get("XDG_DATA_HOME", "")
    if stated and os.path.isabs(stated):
        return Path(stated) / "corral"
    home = environment.get("HOME") or os.path.expanduser("~")
    return Path(home) / ".local" / "share" / "corral"


DATA: Final = Derived("`$XDG_DATA_HOME/corral`, or `~/.local/share/corral`", lambda env, _: default_data(env))


def in_data(name: str) -> Derived[Path]:
    """The default of a path: this name in the data directory."""
    return Derived(f"`{name}` in the data directory", lambda _, values: values["data"] / name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. Options, messages and the reference are made of it."""

    name: str
    section: str
    kind: SettingKind[Any]
    default: Any
    """A value, `Derived` or `REQUIRED`."""
    default_text: str
    flag: str
    """Empty for secrets: a command line can be read by everyone on the machine."""
    env: tuple[str, ...]
    """In order of precedence; the first is ours, the others are LocalAI's."""
    foreign_env: frozenset[str]
    """Variables of LocalAI's, of which the kind may use a part."""
    forgiving_env: frozenset[str]
    """Variables whose nonsense LocalAI ignores; so do we, with a warning."""
    secret: bool
    meaning: str

    @property
    def switch_flags(self) -> str:
        """Both directions of a switch, as click declares them."""
        return f"{self.flag}/--no-{self.flag.removeprefix('--')}"


_Declare = Callable[[str, str, Mapping[str, Sequence[str]]], Setting]
"""Makes the setting of a field, its section and the aliases that the section has for its settings."""


def setting(  # noqa: PLR0913 - a declaration, always written with keywords
    kind: SettingKind[Any],
    meaning: str,
    *,
    name: str = "",
    flag: str | None = None,
    env: str = "",
    aliases: Sequence[str] = (),
    forgives_aliases: bool = False,
    default: object = REQUIRED,
    default_text: str = "",
    secret: bool = False,
) -> Any:
    """Declare a field of a dataclass as a setting.

    `meaning` says what it does, its unit, and why its default is what it is. A default that is a text is written as a
    user would write it. The name is that of the field, the flag and our variable follow from it; `flag=""` is for
    settings without a flag. `aliases` are variables of LocalAI's; with `forgives_aliases` their nonsense is only warned
    about, as LocalAI does.
    """
    text = default_text or _default_text(default)
    if isinstance(default, str) and default:
        default = kind.read(default)

    def declare(field_name: str, section: str, other: Mapping[str, Sequence[str]]) -> Setting:
        own_name = name or field_name
        foreign = tuple(other.get(own_name, aliases))
        own_flag = "--" + own_name.replace("_", "-") if flag is None else flag
        return Setting(
            name=own_name,
            section=section,
            kind=kind,
            default=default,
            default_text=text,
            flag="" if secret else own_flag,
            env=(env or PREFIX + own_name.upper(), *foreign),
            foreign_env=frozenset(foreign),
            forgiving_env=frozenset(foreign if forgives_aliases else ()),
            secret=secret,
            meaning=" ".join(meaning.split()),
        )

    metadata: dict[str, _Declare] = {_KEY: declare}
    plain = default.plain if isinstance(default, Derived) else default
    is_printable = not secret and kind.holds_password is None
    if isinstance(plain, dict):
        return field(default_factory=plain.copy, repr=is_printable, metadata=metadata)
    if plain is REQUIRED:
        return field(repr=is_printable, metadata=metadata)
    return field(default=plain, repr=is_printable, metadata=metadata)


def other_aliases(**aliases: Sequence[str]) -> Mapping[str, object]:
    """Metadata of a field with settings inside, some of which LocalAI calls differently for this process."""
    return {_ALIASES: aliases}


def optional_here(**defaults: str) -> Mapping[str, object]:
    """Metadata of a field with texts inside that other processes need and this one can do without: an empty one is the
    default here. Each is named with what is done then."""
    return {_OPTIONAL: defaults}


def _default_text(default: object) -> str:
    if isinstance(default, Required):
        return "required"
    if isinstance(default, Derived):
        return default.text
    if default in (None, "", (), {}):
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    return str(default)


@dataclass(frozen=True, slots=True)
class Inner:
    """The settings inside a field that is a dataclass itself."""

    part: type[SettingsPart]
    declared: "tuple[Declared, ...]"


@dataclass(frozen=True, slots=True)
class Declared:
    """A field that is a setting, or has settings inside."""

    field: str
    content: Setting | Inner


@cache
def declared_in(group: type[Group]) -> tuple[Declared, ...]:
    """The fields of a section that settings fill. Kept: every process asks for those of each section many times."""
    return tuple(declarations(group, group.section))


@cache
def settings_of(group: type[Group]) -> tuple[Setting, ...]:
    """Every setting of a section, in the order of declaration."""
    return tuple(_flat(declared_in(group)))


def _flat(declared: Iterable[Declared]) -> Iterator[Setting]:
    for declaration in declared:
        if isinstance(declaration.content, Setting):
            yield declaration.content
        else:
            yield from _flat(declaration.content.declared)


def declarations(
    part: type[SettingsPart],
    section: str,
    aliases: Mapping[str, Sequence[str]] | None = None,
    optional: Mapping[str, str] | None = None,
) -> Iterator[Declared]:
    """The fields of a dataclass that settings fill, directly or inside; without parts that are sections themselves."""
    for dataclass_field in dataclasses.fields(part):
        if _KEY in dataclass_field.metadata:
            declare: _Declare = dataclass_field.metadata[_KEY]
            content = declare(dataclass_field.name, section, aliases or {})
            if optional and content.name in optional:
                content = dataclasses.replace(content, default="", default_text=optional[content.name])
            yield Declared(dataclass_field.name, content)
            continue
        for kind in (dataclass_field.type, *typing.get_args(dataclass_field.type)):
            if isinstance(kind, type) and dataclasses.is_dataclass(kind) and not hasattr(kind, "section"):
                inherited = (
                    dataclass_field.metadata.get(_ALIASES, aliases),
                    dataclass_field.metadata.get(_OPTIONAL, optional),
                )
                if within := tuple(declarations(kind, section, *inherited)):
                    yield Declared(dataclass_field.name, Inner(kind, within))
                break


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicPort:
    """The settings of the port that clients dial, for every section that has one."""

    host: str = setting(
        HOST,
        "Address to listen on. Loopback by default: nothing is open to the network that nobody asked for.",
        default="127.0.0.1",
    )
    port: int = setting(
        PORT, "Port to listen on; 0 takes a free one. 8080 is what LocalAI's clients expect.", default=8080
    )
    tls_cert: Path | None = setting(
        EXISTING_FILE,
        """Certificate of the public port in PEM form, with those between it and its authority; needs its key beside
        it. The port then speaks HTTPS and nothing else. None by default: on loopback it would protect nothing, and a
        certificate cannot be guessed.""",
        default=None,
    )
    tls_key: Path | None = setting(
        EXISTING_FILE,
        "Key of the certificate in PEM form, without a password. None by default, as the certificate.",
        default=None,
    )
