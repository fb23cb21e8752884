"""Reads the options of `corral backend build` into an order."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from corral.base.errors import InvalidInput
from corral.imaging.build import BuildOrder
from corral.imaging.layers import LEVELS, USUAL_LEVEL, Compression, Packing
from corral.imaging.targets import GLIBC_VERSIONS, KNOWN, USUAL_GLIBC, read_platform, read_python_version
from corral.oci.manifests import ImagePlatform, this_platform
from corral.oci.references import Reference, parse_reference


class BuildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command as they were given."""

    output: Path | None
    archive: Path | None
    push: str
    mount_from: str
    platforms: Sequence[str]
    pythons: Sequence[str]
    python_versions: Sequence[str]
    libraries: Sequence[str]
    glibc: str | None
    wheels: Path | None
    installer: Path | None
    sdk: Path | None
    compression: str
    level: int | None
    annotations: Sequence[str]
    created: str

    def reference(self) -> Reference | None:
        """The reference to push to; None when there is nothing to push."""
        return parse_reference(self.push) if self.push else None

    def order(self, directory: Path, environment: Mapping[str, str]) -> BuildOrder:
        """The order for these options; InvalidInput names the option that cannot be used."""
        if not (self.output or self.archive or self.push):
            raise InvalidInput("", "say where the image shall go: --output, --archive or --push")
        platforms = tuple(dict.fromkeys(map(read_platform, self.platforms))) or (this_platform(),)
        if str(platforms[0]) not in KNOWN:
            raise InvalidInput("--platform", f"is needed here: no images are made for this machine, {platforms[0]}")
        if self.glibc is not None and self.glibc not in GLIBC_VERSIONS:
            raise InvalidInput("--glibc", f"{self.glibc!r} is none of {', '.join(GLIBC_VERSIONS)}")
        interpreters: dict[ImagePlatform, Path] = {}
        for platform, path in (_per_platform("--python", word, platforms) for word in self.pythons):
            if platform in interpreters:
                raise InvalidInput("--python", f"there are two for {platform}")
            interpreters[platform] = _folder("--python", path)
        libraries: dict[ImagePlatform, tuple[Path, ...]] = {}
        for platform, path in (_per_platform("--library", word, platforms) for word in self.libraries):
            libraries[platform] = (*libraries.get(platform, ()), path)
        return BuildOrder(
            directory=directory,
            platforms=platforms,
            interpreters=interpreters,
            python_versions=tuple(dict.fromkeys(map(read_python_version, self.python_versions))),
            libraries=libraries,
            packing=_packing(self.compression, self.level),
            sdk=self.sdk,
            glibc=self.glibc or USUAL_GLIBC,
            wheels=None if self.wheels is None else _folder("--wheels", self.wheels),
            annotations=dict(map(_annotation, self.annotations)),
            created=_created(self.created),
            environment=environment,
        )


def _per_platform(option: str, word: str, platforms: Sequence[ImagePlatform]) -> tuple[ImagePlatform, Path]:
    """Read OS/ARCH=PATH, or only a path when there is a single platform."""
    stated, equals, rest = word.partition("=")
    if equals and stated in KNOWN:
        platform = read_platform(stated)
        if platform not in platforms:
            raise InvalidInput(option, f"{word!r} is for {platform}, which --platform does not name")
        return platform, Path(rest)
    if len(platforms) > 1:
        raise InvalidInput(option, f"{word!r}: with several platforms say for which it is, as in {platforms[0]}={word}")
    return platforms[0], Path(word)


def _folder(option: str, path: Path) -> Path:
    if not path.is_dir():
        raise InvalidInput(option, f"there is no directory {path}")
    return path.absolute()


def _packing(compression: str, level: int | None) -> Packing:
    algorithm = Compression(compression)
    chosen_level = USUAL_LEVEL[algorithm] if level is None else level
    allowed = LEVELS[algorithm]
    if chosen_level not in allowed:
        raise InvalidInput(
            "--level", f"{chosen_level} is none of {algorithm}'s, which go from {allowed[0]} to {allowed[-1]}"
        )
    return Packing(compression=algorithm, level=chosen_level)


def _annotation(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise InvalidInput("--annotation", f"{word!r} is not KEY=VALUE")
    return key, value


def _created(text: str) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidInput("--created", f"{text!r} is no time with a zone, such as 2026-01-31T12:00:00Z")
    return moment
