"""Settings for reading galleries, and the format of gallery lists in requests and settings."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from corral.base.errors import InvalidInput
from corral.base.setting_kinds import PATH, SettingKind, Unforgivable, duration, size
from corral.base.settings import Derived, setting
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.galleries.gallery import BUILT_IN_URL, GallerySource
from corral.galleries.places import read_place
from corral.oci.signatures.policy import read_policy
from corral.wire.backends import Gallery, read_galleries

BUILT_IN: Final = GallerySource(name="corral", url=BUILT_IN_URL)
"""The gallery of the backends, or of the models, that ship with Corral."""
LOCALAI: Final = GallerySource(
    name="localai",
    url="https://index.localai.io/backends",
    mirrors=("github:mudler/LocalAI/backend/index.yaml@master",),
)
DEFAULT_GALLERIES: Final = (BUILT_IN, LOCALAI)
LOCALAI_MODELS: Final = GallerySource(name="localai", url="github:mudler/LocalAI/gallery/index.yaml@master")
DEFAULT_MODEL_GALLERIES: Final = (BUILT_IN, LOCALAI_MODELS)
_LONGEST_SHOWN: Final = 80
_LOGIN: Final = re.compile(r"://[^/\"\s]*@")


def sources_of(galleries: Iterable[Gallery]) -> tuple[GallerySource, ...]:
    """Parse a list of galleries from a request or a setting."""
    return tuple(
        GallerySource(
            name=gallery.name.strip(),
            url=gallery.url.strip(),
            mirrors=tuple(gallery.mirrors),
            verification=gallery.verification,
        )
        for gallery in galleries
    )


def _kind(check: Callable[[Sequence[Gallery]], tuple[GallerySource, ...]]) -> SettingKind[Any]:
    """Return the kind of setting that is a list of galleries. `check` raises ValueError for one that cannot be used."""

    def read(text: str) -> tuple[GallerySource, ...]:
        try:
            galleries = read_galleries(text.strip())
        except InvalidInput:
            raise ValueError from None
        if galleries is None:
            raise ValueError
        return check(galleries)

    def read_tables(tables: Sequence[object]) -> tuple[GallerySource, ...]:
        try:
            return check(msgspec.convert(tables, type=list[Gallery]))
        except msgspec.ValidationError:
            raise ValueError from None

    def salvage(text: str) -> tuple[tuple[GallerySource, ...], str]:
        """Leave out the galleries that cannot be used: whoever gives a list wants no others in their place."""
        usable: list[Gallery] = []
        unusable: list[str] = []
        for number, item in enumerate(_items_of(text), 1):
            try:
                galleries = read_galleries(msgspec.json.encode([item]).decode()) or []
                check([*usable, *galleries])
                usable += galleries
            except (InvalidInput, ValueError):
                unusable.append(_name_of(item) or f"number {number}")
        return check(usable), f"galleries that cannot be used are left out: {', '.join(unusable)}"

    return SettingKind(
        salvage=salvage,
        placeholder="JSON",
        allowed='a JSON list such as [{"name": "mine", "url": "https://example.org/index.yaml"}], each name once, with '
        "URLs that begin with http://, https://, file:///, oci:// or github:, or are corral:builtin",
        read=read,
        read_tables=read_tables,
        shown=lambda text: _LOGIN.sub("://***@", text),
        holds_password=lambda text: _LOGIN.search(text) is not None,
    )


def _items_of(text: str) -> Sequence[object]:
    try:
        return msgspec.json.decode(text, type=list[Any])
    except UNREADABLE_JSON:
        raise ValueError from None


def _name_of(item: object) -> str:
    name = item.get("name") if isinstance(item, dict) else None
    return ascii(name[:_LONGEST_SHOWN]) if isinstance(name, str) and name else ""


def _checked(galleries: Sequence[Gallery]) -> tuple[GallerySource, ...]:
    sources = sources_of(galleries)
    names = [source.name.lower() for source in sources if source.name]
    if len(set(names)) < len(names) or not all(name.isprintable() and "@" not in name for name in names):
        raise ValueError
    for source in sources:
        try:
            for url in (source.url, *source.urls[1:]):
                read_place(url)
        except InvalidInput:
            raise ValueError from None
    return sources


def _checked_with_policies(galleries: Sequence[Gallery]) -> tuple[GallerySource, ...]:
    sources = _checked(galleries)
    for source in sources:
        try:
            read_policy(source.verification)
        except InvalidInput as error:  # it may be shown: a policy contains no secrets
            raise Unforgivable("backend_galleries", f"the gallery {source.name!r}: {error}") from None
    return sources


def _default_cache(environment: Mapping[str, str], _: Mapping[str, Any]) -> Path:
    """Return the user's cache directory by the XDG rules."""
    stated = environment.get("XDG_CACHE_HOME", "")
    home = environment.get("HOME") or os.path.expanduser("~")
    return (Path(stated) if stated and os.path.isabs(stated) else Path(home) / ".cache") / "corral" / "galleries"


@dataclass(frozen=True, slots=True, kw_only=True)
class GalleriesConfig:
    """Where backends and models are to be had, and how the lists of them are read."""

    section: ClassVar[str] = "gallery"
    title: ClassVar[str] = "Galleries"

    sources: tuple[GallerySource, ...] = setting(
        _kind(_checked_with_policies),
        """Galleries of backends, the first one first where two have a backend of the same name: a JSON list, or in the
        file a list of tables. Each has a `name`, a `url`, and maybe `mirrors` that are tried when the url fails. The
        url `corral:builtin` stands for what ships with Corral. By default that, and LocalAI's gallery, which is asked
        only when somebody looks for a backend.""",
        name="backend_galleries",
        aliases=("LOCALAI_BACKEND_GALLERIES", "BACKEND_GALLERIES"),
        forgives_aliases=True,
        default=DEFAULT_GALLERIES,
        default_text="what ships with Corral, and LocalAI's gallery",
    )
    model_sources: tuple[GallerySource, ...] = setting(
        _kind(_checked),
        """Galleries of models, the first one first where two have a model of the same name: written as galleries of
        backends are. The url `corral:builtin` stands for the models that Corral itself names. By default those, and
        LocalAI's gallery, which is asked only when somebody looks for a model.""",
        name="model_galleries",
        aliases=("LOCALAI_GALLERIES", "GALLERIES"),
        forgives_aliases=True,
        default=DEFAULT_MODEL_GALLERIES,
        default_text="what Corral itself names, and LocalAI's gallery",
    )
    builtin: Path | None = setting(
        PATH,
        """Index of the backends that ship with Corral, as images. `corral up` names the one of its provisions. Without
        it, workers run them as they lie in the checkout, and install nothing.""",
        flag="--builtin-gallery",
        env="CORRAL_BUILTIN_GALLERY",
        default=None,
        default_text="none",
    )
    cache: Path = setting(
        PATH,
        """Directory of the last good copy of each gallery, used while its places are away. All processes of a user
        share it.""",
        flag="--gallery-cache",
        env="CORRAL_GALLERY_CACHE",
        default=Derived("`$XDG_CACHE_HOME/corral/galleries`, or `~/.cache/corral/galleries`", _default_cache),
    )
    max_age: timedelta = setting(
        duration("0s", "365d"),
        """How long a copy counts as new: so long nobody is asked. 1 hour, as LocalAI has it; `corral gallery refresh`
        asks at once. A process that starts checks each copy once, and so does a name that no copy has, at most every
        30 seconds.""",
        flag="--gallery-max-age",
        env="CORRAL_GALLERY_MAX_AGE",
        default="1h",
    )
    timeout: timedelta = setting(
        duration("100ms", "1h"),
        """How long one place of a gallery may take to answer, in all, before the next one is tried. 30 s: an index has
        less than a megabyte.""",
        flag="--gallery-timeout",
        env="CORRAL_GALLERY_TIMEOUT",
        default="30s",
    )
    max_bytes: int = setting(
        size("1KiB", "1024MiB"),
        "Bytes of an index that are read. 32 MiB: fifty times LocalAI's own, and no strain for a machine.",
        name="max_size",
        flag="--gallery-max-size",
        env="CORRAL_GALLERY_MAX_SIZE",
        default="32MiB",
    )
    connect_timeout: timedelta = timedelta(seconds=10)
    """Timeout of the connection alone, so that a dead host does not use up the whole time."""
    pause: timedelta = timedelta(minutes=1)
    """How long a failed place is skipped while there is a mirror or a cached copy."""
    recheck_after: timedelta = timedelta(seconds=30)
    """Age from which a copy is checked again before a name is called unknown: wrong names must not ask all the time."""
    trusts_earlier_checks: bool = False
    """Whether a copy that an earlier process checked is fresh too. Processes that go on check each copy once, since
    people restart them to have a changed index read; commands, of which each is a process, do not."""
