"""Parses entries of galleries of models in LocalAI's format, and makes models of them. Pure; the input is not trusted.

A model's configuration is that of the base definition which the entry names, the entry's name laid over it, and then
the entry's overrides: mappings are merged key by key, everything else is replaced. An override `name` beats the
entry's.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

import msgspec

from corral.base.careful_yaml import UNREADABLE, YamlLimits, why
from corral.base.config_fields import Config, kind, text
from corral.base.errors import InvalidInput
from corral.base.values import PartlyPrinted
from corral.base.yaml_values import YamlItem, YamlMapping, read_document
from corral.galleries.gallery import IndexContent, entry_texts, item_mapping
from corral.galleries.model_key_checks import with_plain_switches

_KEYS: Final = """
    name description license icon urls tags size url config_file overrides files variants backend last_checked
"""
ENTRY_KEYS: Final = frozenset(_KEYS.split())
"""Keys of an entry that mean something. `last_checked` is a note of LocalAI's own tools."""
GGUF_BACKEND: Final = "llama-cpp"
"""What serves a GGUF file whose entry names no backend."""
DEFINITION_LIMITS: Final = YamlLimits(most_values=5_000, deepest=32, things="models")
_LONGEST_NAME: Final = 200
_LONGEST_PATH: Final = 1024
_MOST_FILES: Final = 1000
_SHOWN: Final = 80
_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a model, and where it is to be had."""

    filename: str
    """Relative to the models directory; may contain subdirectories."""
    uri: str
    sha256: str = ""
    """In lower case; empty if the gallery tells none."""
    line: int = 0


class GalleryModel(PartlyPrinted, frozen=True, kw_only=True):
    """One model of a gallery."""

    unprinted = ("config", "overrides", "description", "lines")

    name: str
    gallery: str = ""
    line: int = 0
    url: str = ""
    """Where the base definition is; empty if there is none."""
    index_path: str = ""
    """The index on this machine that it was read from; otherwise empty."""
    config: Config = msgspec.field(default_factory=dict)
    """The base configuration, if it is in the entry itself."""
    overrides: Config = msgspec.field(default_factory=dict)
    files: tuple[ModelFile, ...] = ()
    variants: tuple[str, ...] = ()
    """Names of entries that are other builds of the same model."""
    backend: str = ""
    description: str = ""
    license: str = ""
    icon: str = ""
    size: str = ""
    urls: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """Keys that no reader of entries knows."""
    lines: Mapping[str, int] = msgspec.field(default_factory=dict)
    """The lines of its keys."""

    @property
    def id(self) -> str:
        """`gallery@name`, which is unique across galleries."""
        return f"{self.gallery}@{self.name}" if self.gallery else self.name


ModelContent = IndexContent[GalleryModel]
"""A gallery of models."""


def read_model_entry(item: YamlItem, gallery: str) -> GalleryModel:
    """Parse an entry. InvalidInput names the key with an invalid value."""
    value = item_mapping(item)
    entry = GalleryModel(
        name=text(value, "name").strip(),
        gallery=gallery,
        line=item.line,
        url=text(value, "url").strip(),
        config=_config(value, "config_file"),
        overrides=_mapping(value, "overrides"),
        files=read_files(value, "files"),
        variants=_variants(value),
        backend=text(value, "backend").strip(),
        description=text(value, "description"),
        license=text(value, "license"),
        icon=text(value, "icon"),
        size=text(value, "size"),
        urls=entry_texts(value, "urls"),
        tags=_tags(value),
        unknown=tuple(key for key in value if key not in ENTRY_KEYS),
        lines=value.key_lines if isinstance(value, YamlMapping) else {},
    )
    if problem := model_name_problem(entry.name):
        raise InvalidInput("name", problem)
    if not (entry.url or entry.config or entry.overrides or entry.files):
        raise InvalidInput("", "has no url, no config_file, no overrides and no files: nothing says what the model is")
    return entry


def model_name_problem(name: str) -> str:
    """Return why a name cannot be that of a model; empty if it can."""
    if not name:
        return "is missing"
    if len(name.encode("utf-8", "surrogatepass")) > _LONGEST_NAME:
        return f"is longer than {_LONGEST_NAME} bytes"
    if not name.isprintable() or "#" in name:
        return "must be one line without #"
    return "" if name.strip(".") else "cannot be the name of a file"


def read_files(value: Config, key: str) -> tuple[ModelFile, ...]:
    """Parse a list of files. InvalidInput names the item."""
    items = value.get(key)
    if items is None:
        return ()
    if not isinstance(items, Sequence) or isinstance(items, str) or len(items) > _MOST_FILES:
        raise InvalidInput(key, f"must be a list of up to {_MOST_FILES} files, got {kind(items)}")
    return tuple(_file(item, f"{key}[{number}]") for number, item in enumerate(items))


def _file(item: object, key: str) -> ModelFile:
    if not isinstance(item, Mapping):
        raise InvalidInput(key, f"must be a mapping with filename, uri and sha256, got {kind(item)}")
    filename, uri, sha256 = (text(item, part).strip() for part in ("filename", "uri", "sha256"))
    if problem := path_problem(filename):
        raise InvalidInput(f"{key}.filename", problem)
    if not uri:
        raise InvalidInput(f"{key}.uri", "is missing")
    if sha256 and not _SHA256.fullmatch(sha256):
        raise InvalidInput(f"{key}.sha256", f"must be 64 hexadecimal digits, got {sha256[:_SHOWN]!r}")
    line = item.line if isinstance(item, YamlMapping) else 0
    return ModelFile(filename=filename, uri=uri, sha256=sha256.lower(), line=line)


def path_problem(path: str) -> str:
    """Return why a path cannot be that of a file below the models directory; empty if it can."""
    if not path:
        return "is missing"
    if len(path) > _LONGEST_PATH or not path.isprintable():
        return f"must be one line of up to {_LONGEST_PATH} characters"
    parts = PurePosixPath(path).parts
    if path.startswith("/") or "\\" in path or ".." in parts or not parts:
        return f"must be below the models directory, got {path[:_SHOWN]!r}"
    return f"must not be hidden, got {path[:_SHOWN]!r}" if parts[0].startswith(".") else ""


def _variants(value: Config) -> tuple[str, ...]:
    items = value.get("variants")
    if items is None:
        return ()
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise InvalidInput("variants", f"must be a list of mappings with a model each, got {kind(items)}")
    names = [text(item, "model").strip() for item in items]
    if not all(names):
        raise InvalidInput("variants", "must name a model each")
    return tuple(dict.fromkeys(names))


def _tags(value: Config) -> tuple[str, ...]:
    """Return the tags; numbers among them are written as text."""
    items = value.get("tags")
    if isinstance(items, list):
        items = [str(item) if isinstance(item, int | float) and not isinstance(item, bool) else item for item in items]
    return entry_texts({"tags": items}, "tags")


def _mapping(value: Config, key: str) -> Config:
    part = value.get(key)
    if part is None:
        return {}
    if not isinstance(part, Mapping):
        raise InvalidInput(key, f"must be a mapping, got {kind(part)}")
    return part


def _config(value: Config, key: str) -> Config:
    """Return a configuration that is written as a mapping, or as a text that is YAML itself."""
    part = value.get(key)
    if not isinstance(part, str):
        return _mapping(value, key)
    line = key_line(value, (key,))  # a text that is written with | begins in the line after its key
    try:
        config = read_document(part, DEFINITION_LIMITS, lines_before=line)
    except UNREADABLE as error:
        raise InvalidInput(key, why(error, first_line=line + 1)) from None
    return _mapping({key: config}, key)


# Base definitions.


class BaseDefinition(PartlyPrinted, frozen=True, kw_only=True):
    """What entries that name one url have in common."""

    unprinted = ("config", "templates")

    config: Config = msgspec.field(default_factory=dict)
    files: tuple[ModelFile, ...] = ()
    templates: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Prompt templates by name, which the configuration refers to."""
    license: str = ""
    icon: str = ""
    description: str = ""
    urls: tuple[str, ...] = ()


NO_BASE: Final = BaseDefinition()


def read_definition(content: bytes) -> BaseDefinition:
    """Parse a base definition. InvalidInput names the key with an invalid value."""
    try:
        document = read_document(content.decode("utf-8-sig"), DEFINITION_LIMITS)
    except UnicodeDecodeError as error:
        raise InvalidInput("", f"is not UTF-8 text: see byte {error.start}") from None
    except UNREADABLE as error:
        raise InvalidInput("", why(error)) from None
    if document is None:
        return NO_BASE
    if not isinstance(document, Mapping):
        raise InvalidInput("", f"must be a mapping, got {kind(document)}")
    return BaseDefinition(
        config=_config(document, "config_file"),
        files=read_files(document, "files"),
        templates=_templates(document),
        license=text(document, "license"),
        icon=text(document, "icon"),
        description=text(document, "description"),
        urls=entry_texts(document, "urls"),
    )


def _templates(document: Config) -> Mapping[str, str]:
    items = document.get("prompt_templates")
    if items is None:
        return {}
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise InvalidInput("prompt_templates", f"must be a list of mappings, got {kind(items)}")
    return {text(item, "name"): text(item, "content") for item in items}


# What becomes of an entry.


class ModelPlan(PartlyPrinted, frozen=True, kw_only=True):
    """The configuration that an entry ends up with, and the files to download."""

    unprinted = ("config",)

    name: str
    config: Config
    files: tuple[ModelFile, ...] = ()
    license: str = ""
    is_backend_assumed: bool = False
    """Whether nothing names the backend, and it was taken for its GGUF file."""

    @property
    def file_name(self) -> str:
        """What its file in the models directory is called, as LocalAI calls it."""
        return self.name.replace("/", "__").replace("\\", "__") + ".yaml"

    @property
    def backend(self) -> str:
        backend = self.config.get("backend")
        return backend if isinstance(backend, str) else ""


def plan_model(entry: GalleryModel, base: BaseDefinition = NO_BASE, *, name: str = "") -> ModelPlan:
    """Return what an entry stands for. A `name` that somebody asked for beats those of the entry and its overrides.

    `base` is what the entry's url leads to; NO_BASE without a url. InvalidInput names what cannot be used.
    """
    start = base.config if entry.url else entry.config
    config = with_plain_switches(merged(merged(start, {"name": entry.name}), entry.overrides))
    if name:
        config["name"] = name
    final = config.get("name")
    if not isinstance(final, str) or model_name_problem(final):
        problem = model_name_problem(final) if isinstance(final, str) else f"must be text, got {kind(final)}"
        raise InvalidInput("overrides.name", problem)
    if entry.backend and not config.get("backend"):
        config["backend"] = entry.backend
    _inline_templates(config, base.templates)
    stated = entry.overrides if entry.overrides.get("download_files") is not None else start
    files = _by_name((*base.files, *entry.files, *read_files(stated, "download_files")))
    is_assumed = not config.get("backend") and any(file.filename.lower().endswith(".gguf") for file in files)
    if is_assumed:
        config["backend"] = GGUF_BACKEND
    return ModelPlan(
        name=final,
        config=config,
        files=files,
        license=entry.license or base.license,
        is_backend_assumed=is_assumed,
    )


def merged(base: Config, over: Config) -> dict[str, object]:
    """Return one configuration laid over another, as plain dictionaries and lists that belong to the caller."""
    result = {key: _owned(value) for key, value in base.items()}
    for key, value in over.items():
        before = base.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[key] = merged(before, value) if both else _owned(value)  # type: ignore[arg-type]
    return result


def _owned(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _owned(part) for key, part in value.items()}
    return [_owned(part) for part in value] if isinstance(value, list) else value


def _inline_templates(config: dict[str, object], templates: Mapping[str, str]) -> None:
    """Put the text of named prompt templates where the configuration has their names."""
    part = config.get("template")
    if templates and isinstance(part, dict):
        config["template"] = {
            key: templates.get(value, value) if isinstance(value, str) else value for key, value in part.items()
        }


def _by_name(files: Iterable[ModelFile]) -> tuple[ModelFile, ...]:
    """The files, each name once. If several have the same name, the last one counts."""
    return tuple({file.filename: file for file in files}.values())


def key_line(value: object, path: Sequence[str]) -> int:
    """Return the line of a key below a value, or of the nearest part above it that is there; 0 if unknown."""
    line = 0
    for part in path:
        if not isinstance(value, YamlMapping) or part not in value:
            break
        line = value.key_lines.get(part, line)
        value = value[part]
    return line
