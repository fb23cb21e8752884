"""Which files of the models directory a model needs on its node, by what keys, and what their paths become there. Pure.

Keys are LocalAI's: `models/<name of the model>/<path below the models directory>`, so that what was brought for a model
is deleted with it. Below that, everything lies as it does here, so relative paths mean the same there.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Final

from corral.base import config_fields as fields
from corral.frontend.models.decide.model import folder_of

_PATHS: Final = ("ModelFile", "MMProj", "LoraAdapter", "DraftModel", "CLIPModel", "Tokenizer", "AudioPath", "LoraBase")
_LISTS: Final = ("LoraAdapters",)
_PAIRS: Final = ("Options", "Overrides")
"""Lists of entries `key:value`."""
_SHARD: Final = re.compile(r"(.*-)(\d{5})(-of-)(\d{5})(\.gguf)", re.DOTALL)
_MOST_SHARDS: Final = 1000
_AREA: Final = "models"


def needed_paths(options: Mapping[str, object], models: PurePath) -> list[str]:
    """What the fields of a load may mean below the models directory, the model's own file first.

    A relative path means one of the models directory, or of the directory that the model's file is in.
    """
    own = _below(str(options.get("ModelFile") or ""), models, PurePath())
    beside = PurePath(own).parent if own else PurePath()
    paths = dict.fromkeys(_with_companions(own))
    for text in _named(options):
        for folder in dict.fromkeys((PurePath(), beside)):
            if path := _below(text, models, folder):
                paths.setdefault(path)
    return list(paths)


def _named(options: Mapping[str, object]) -> Iterator[str]:
    for name in _PATHS[1:]:
        yield str(options.get(name) or "")
    for name in _LISTS:
        yield from map(str, fields.listed(options.get(name)))
    for name in _PAIRS:
        for entry in fields.listed(options.get(name)):
            yield str(entry).partition(":")[2]


def _below(text: str, models: PurePath, folder: PurePath) -> str:
    """A path as one below the models directory; empty when it is none, or the directory itself."""
    text = text.strip()
    if not text or "\0" in text or "\n" in text or len(text) > 1024:
        return ""
    path = PurePath(text)
    if path.is_absolute():
        if not path.is_relative_to(models):
            return ""
        path = path.relative_to(models)
    else:
        path = folder / path
    return "" if ".." in path.parts or path == PurePath() or path.parts[0] == ".corral" else str(path)


def _with_companions(path: str) -> Iterator[str]:
    """The model's file and what engines expect beside it: the other parts of a split one, and a voice's settings."""
    if not path:
        return
    yield path
    if (shard := _SHARD.fullmatch(path)) and 0 < int(shard[4]) <= _MOST_SHARDS:
        for number in range(1, int(shard[4]) + 1):
            yield f"{shard[1]}{number:05}{shard[3]}{shard[4]}{shard[5]}"
    if path.endswith(".onnx"):
        yield f"{path}.json"


def shared_key(path: str) -> str:
    """Where a file is on a node that shares the models directory, or has the same."""
    return f"{_AREA}/{path}"


def own_key(model: str, path: str) -> str:
    """Where a file is brought to for a model."""
    return f"{_AREA}/{folder_of(model)}/{path}"


def base_of(remote: str, path: str) -> PurePath | None:
    """The directory that stands for the models directory on a node, by where it has a file; None if that is no such
    place."""
    whole, tail = PurePath(remote), PurePath(path)
    if not whole.is_absolute() or whole.parts[-len(tail.parts) :] != tail.parts:
        return None
    return PurePath(*whole.parts[: -len(tail.parts)])


def moved(options: Mapping[str, object], here: PurePath, there: PurePath) -> dict[str, object]:
    """Fields of a load with the paths of the node in place of ours."""
    changed = dict(options)
    for name in ("ModelPath", *_PATHS):
        if isinstance(value := changed.get(name), str):
            changed[name] = moved_path(value, here, there)
    for name in _LISTS:
        if name in changed:
            changed[name] = [moved_path(str(value), here, there) for value in fields.listed(changed[name])]
    for name in _PAIRS:
        if name in changed:
            changed[name] = [_moved_pair(str(entry), here, there) for entry in fields.listed(changed[name])]
    return changed


def without_paths(options: Mapping[str, object], here: PurePath) -> dict[str, object]:
    """Fields of a load without paths below our models directory, for a node that has no file of the model.

    LocalAI's frontends send the same: a backend that gets no path fetches the model by its name.
    """
    kept = {
        name: value
        for name, value in options.items()
        if name not in ("ModelPath", *_PATHS) or not _is_below(str(value), here)
    }
    for name in _LISTS:
        if name in kept:
            kept[name] = [value for value in fields.listed(kept[name]) if not _is_below(str(value), here)]
    return kept


def _is_below(text: str, here: PurePath) -> bool:
    path = PurePath(text)
    return path.is_absolute() and path.is_relative_to(here)


def moved_path(text: str, here: PurePath, there: PurePath) -> str:
    return str(there / PurePath(text).relative_to(here)) if _is_below(text, here) else text


def _moved_pair(entry: str, here: PurePath, there: PurePath) -> str:
    key, colon, value = entry.partition(":")
    return f"{key}{colon}{moved_path(value, here, there)}" if colon else entry


def content_key(digest: str) -> str:
    """Where an object storage has a file with this SHA-256, whatever its name and its model."""
    return f"corral/sha256/{digest[:2]}/{digest}"


def version_of(digests: Mapping[str, str]) -> str:
    """What tells a set of files from another one with the same names: by path, their digests."""
    lines = "".join(f"{digests[path]} {path}\n" for path in sorted(digests))
    return hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest()[:16]
