"""Settings of galleries."""

# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from corral.processes.settings_kinds import GALLERIES, PATH, duration, size
from corral.processes.settings_sources import Derived, setting
from corral.processes.settings_table.defaults import MIB, default_gallery_cache

if TYPE_CHECKING:
    from corral.domain.gallery import GallerySource


def _default_galleries(_: Mapping[str, str]) -> "tuple[GallerySource, ...]":
    from corral.galleries.config import DEFAULT_GALLERIES

    return DEFAULT_GALLERIES


@dataclass(frozen=True, slots=True, kw_only=True)
class GallerySettings:
    """Where backends are to be had, and how the lists of them are read."""

    section: ClassVar[str] = "gallery"
    title: ClassVar[str] = "Galleries"

    backend_galleries: "tuple[GallerySource, ...]" = setting(
        GALLERIES,
        """Galleries of backends, the first one first where two have a backend of the same name: a JSON list, or in the
        file a list of tables. Each has a `name`, a `url`, and maybe `mirrors` that are tried when the url fails. The
        url `corral:builtin` stands for what ships with Corral. By default that, and LocalAI's gallery, which is asked
        only when somebody looks for a backend.""",
        flag="--backend-galleries",
        env=("CORRAL_BACKEND_GALLERIES", "LOCALAI_BACKEND_GALLERIES", "BACKEND_GALLERIES"),
        default=Derived("what ships with Corral, and LocalAI's gallery", _default_galleries),
        forgiving_env=("LOCALAI_BACKEND_GALLERIES", "BACKEND_GALLERIES"),
    )
    builtin: Path | None = setting(
        PATH,
        """Index of the backends that ship with Corral, as images. `corral up` names the one of its provisions. Without
        it, workers run them as they lie in the checkout, and install nothing.""",
        flag="--builtin-gallery",
        env=("CORRAL_BUILTIN_GALLERY",),
        default=None,
        default_text="none",
    )
    cache: Path = setting(
        PATH,
        """Directory of the last good copy of each gallery, used while its places are away. All processes of a user
        share it.""",
        flag="--gallery-cache",
        env=("CORRAL_GALLERY_CACHE",),
        default=Derived("`$XDG_CACHE_HOME/corral/galleries`, or `~/.cache/corral/galleries`", default_gallery_cache),
    )
    max_age: timedelta = setting(
        duration(timedelta(0), timedelta(days=365), bounds="from 0s to 365d"),
        """How long a copy counts as new: so long nobody is asked. 1 hour, as LocalAI has it; `corral gallery refresh`
        asks at once.""",
        flag="--gallery-max-age",
        env=("CORRAL_GALLERY_MAX_AGE",),
        default=timedelta(hours=1),
        default_text="1h",
    )
    timeout: timedelta = setting(
        duration(timedelta(milliseconds=100), timedelta(hours=1), bounds="from 100ms to 1h"),
        """How long one place of a gallery may take to answer, in all, before the next one is tried. 30 s: an index has
        less than a megabyte.""",
        flag="--gallery-timeout",
        env=("CORRAL_GALLERY_TIMEOUT",),
        default=timedelta(seconds=30),
        default_text="30s",
    )
    max_size: int = setting(
        size(1024, 1024 * MIB, bounds="from 1KiB to 1024MiB"),
        "Bytes of an index that are read. 32 MiB: fifty times LocalAI's own, and no strain for a machine.",
        flag="--gallery-max-size",
        env=("CORRAL_GALLERY_MAX_SIZE",),
        default=32 * MIB,
        default_text="32MiB",
    )
