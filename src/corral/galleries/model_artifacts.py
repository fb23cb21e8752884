"""Repositories that a model's configuration names under `artifacts`, and where their files are. Pure.

The layout is LocalAI's: `.artifacts` in the models directory has one snapshot for each repository at a commit. Its name
is a hash of what was asked for. What was found is noted in the configuration under `resolved`. The first artefact is
the model itself; the others are companions, and a backend gets their paths as options.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Final

import msgspec

from corral.base import config_fields as fields
from corral.base.config_fields import Config
from corral.base.errors import InvalidInput

MODEL: Final = "model"
COMPANION: Final = "companion"
_SOURCE: Final = "huggingface"
_FOLDER: Final = ".artifacts/huggingface"
_KEY: Final = re.compile(r"[0-9a-f]{64}")
_COMPANION_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_ESCAPED: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""Letters that Go's JSON never has as they are."""
_SHOWN: Final = 80


class ModelArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """A repository that a model needs."""

    name: str
    repository: str
    """`owner/name`."""
    revision: str = "main"
    allow_patterns: tuple[str, ...] = ()
    """Which files are wanted; empty for all."""
    ignore_patterns: tuple[str, ...] = ()

    def wants(self, path: str) -> bool:
        """Whether a file of the repository is one of the artefact's."""
        is_allowed = not self.allow_patterns or _matches(path, self.allow_patterns)
        return is_allowed and not _matches(path, self.ignore_patterns)

    def cache_key(self, endpoint: str, commit: str) -> str:
        """What LocalAI calls the snapshot of this artefact at a commit."""
        document: dict[str, object] = {
            "type": _SOURCE,
            "endpoint": endpoint,
            "repo": self.repository,
            "revision": commit,
        }
        for key, patterns in (("allow_patterns", self.allow_patterns), ("ignore_patterns", self.ignore_patterns)):
            if patterns:
                document[key] = sorted(patterns)
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
        for letter, escaped in _ESCAPED.items():
            text = text.replace(letter, escaped)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether a path is one of the patterns'. A star stays within one part; a pattern of one part is also tried on the
    name of the file."""
    parts = path.split("/")
    for pattern in patterns:
        pattern_parts = pattern.split("/")
        if len(pattern_parts) == len(parts) and all(map(fnmatchcase, parts, pattern_parts)):
            return True
        if len(pattern_parts) == 1 and fnmatchcase(parts[-1], pattern):
            return True
    return False


def read_artifacts(config: Config) -> list[ModelArtifact]:
    """The artefacts of a configuration, the model's own first. InvalidInput names what is wrong with them."""
    artifacts: list[ModelArtifact] = []
    for number, item in enumerate(_items(config)):
        key = f"artifacts[{number}]"
        name = fields.text(item, "name") or MODEL
        target = fields.text(item, "target") or MODEL
        if (target == MODEL) != (number == 0) or (name == MODEL) != (number == 0):
            raise InvalidInput(key, "the first one, and no other, is called `model` and has this target")
        if target not in (MODEL, COMPANION) or not _COMPANION_NAME.fullmatch(name):
            raise InvalidInput(
                key, "is neither a `model` nor a `companion` with a name of small letters, digits, - and _"
            )
        source, repository = fields.text(item, "source.type"), fields.text(item, "source.repo")
        if source != _SOURCE:
            raise InvalidInput(f"{key}.source.type", f"must be {_SOURCE}, got {source[:_SHOWN]!r}")
        if not _REPOSITORY.fullmatch(repository):
            raise InvalidInput(f"{key}.source.repo", f"must be owner/name, got {repository[:_SHOWN]!r}")
        artifacts.append(
            ModelArtifact(
                name=name,
                repository=repository,
                revision=fields.text(item, "source.revision") or "main",
                allow_patterns=_patterns(item, "allow_patterns"),
                ignore_patterns=_patterns(item, "ignore_patterns"),
            )
        )
    return artifacts


def _items(config: Config) -> list[Config]:
    return [item for item in fields.listed(config.get("artifacts")) if isinstance(item, Mapping)]


def _patterns(item: Config, name: str) -> tuple[str, ...]:
    return tuple(map(str, fields.listed(fields.value_at(item, f"source.{name}"))))


def snapshot_path(cache_key: str, path: str = "") -> str:
    """Where a snapshot, or a file of it, is below the models directory."""
    return "/".join(filter(None, (_FOLDER, cache_key, "snapshot", path)))


def with_resolved(config: Config, resolved: Sequence[Mapping[str, str]]) -> dict[str, object]:
    """The configuration with what was found for each of its artefacts, in their order."""
    items = [{**item, "resolved": dict(snapshot)} for item, snapshot in zip(_items(config), resolved, strict=True)]
    return {**config, "artifacts": items}


def artifact_weights(config: Config) -> str:
    """The path of the model's own artefact below the models directory: its only file, or the snapshot; empty where
    nothing was found for it yet."""
    items = _items(config)
    return _place(items[0]) if items and fields.text(items[0], "target") in ("", MODEL) else ""


def companion_options(config: Config, options: Sequence[object]) -> list[str]:
    """The options that name the companions for a backend, as paths below the models directory. Entries that `options`
    already has are left out."""
    stated = {str(option).partition(":")[0] for option in options}
    return [
        f"{name}:{place}"
        for item in _items(config)
        if fields.text(item, "target") == COMPANION
        and (name := fields.text(item, "name"))
        and name not in stated
        and (place := _place(item, whole=True))
    ]


def _place(item: Config, *, whole: bool = False) -> str:
    """Where a resolved artefact is; empty for one that is not, or that leads elsewhere."""
    key, file = fields.value_at(item, "resolved.cache_key"), fields.value_at(item, "resolved.primary_file") or ""
    if not isinstance(key, str) or not _KEY.fullmatch(key) or not isinstance(file, str):
        return ""
    if file.startswith("/") or ".." in PurePosixPath(file).parts:
        return ""
    return snapshot_path(key, "" if whole else file)
