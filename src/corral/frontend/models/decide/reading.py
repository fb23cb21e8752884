"""Reads the YAML of models: what each says, with the line of whatever is wrong, odd or not to be used. Pure."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base.careful_yaml import UNREADABLE, YamlLimits, why
from corral.base.errors import InvalidInput
from corral.base.yaml_values import YamlMapping, read_document, write_document
from corral.frontend.models.decide.model import ModelProblem, ModelSpec, read_model, revision_of
from corral.galleries.model_key_checks import (
    ConfigPath,
    unknown_keys,
    unknown_words,
    with_plain_switches,
    wrong_values,
)
from corral.templates import advice, refusals
from corral.templates.prompts import TEMPLATES

LARGEST_FILE: Final = 256 * 1024
DEEPEST: Final = 32
LARGEST_DOCUMENT: Final = 20_000
"""Values after all aliases are written out. A model file has a hundred."""
LIMITS: Final = YamlLimits(deepest=DEEPEST, most_values=LARGEST_DOCUMENT, things="models")
_LONGEST_TEMPLATE_NAME: Final = 200

NamedTemplate = Callable[[str], str | None]
"""Returns the content of the template file with this name; None if there is no such file."""


def no_templates(name: str) -> str | None:
    """For configurations that come without a directory."""
    return None


class ReadModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be used."""

    spec: ModelSpec
    text: str
    """Its YAML, alone and whole: without the other models of its file, with the templates that it names."""
    digest: str
    """Digest of `text`."""

    @property
    def is_disabled(self) -> bool:
        return self.spec.config.get("disabled") is True

    @property
    def is_pinned(self) -> bool:
        return self.spec.config.get("pinned") is True


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class NotReadable(Exception):
    """Why a text is no list of models: the end of a sentence that begins with its name."""


def read_text(content: bytes) -> str:
    """The text of a file. NotReadable if the content is not text, or too large."""
    if len(content) > LARGEST_FILE:
        raise NotReadable(f"is larger than {LARGEST_FILE // 1024} KiB, which no model file needs")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NotReadable(f"is not UTF-8 text: see byte {error.start}") from None


def read_models(
    text: str, *, source: str, named_template: NamedTemplate = no_templates
) -> list[ReadModel | ModelProblem]:
    """The models of a text: one, or a list of them. What cannot be used is a sentence, and never an exception."""
    try:
        document = read_document(text, LIMITS)
    except UNREADABLE as error:
        return [ModelProblem(source=source, problem=why(error))]
    if document is None or document == []:
        return [ModelProblem(source=source, problem="is empty")]
    is_list = isinstance(document, list)
    parts = document if isinstance(document, list) else [document]
    return [_read_part(part, "" if is_list else text, source, named_template) for part in parts]


def read_one(text: str) -> ReadModel:
    """The one model of a text. InvalidInput says what is wrong with it."""
    try:
        readings = read_models(read_text(text.encode("utf-8", "surrogatepass")), source="")
    except NotReadable as error:
        raise InvalidInput("config", str(error)) from None
    if len(readings) != 1:
        raise InvalidInput("config", f"holds {len(readings)} models; give one at a time")
    if isinstance(readings[0], ModelProblem):
        raise InvalidInput("config", readings[0].problem)
    return readings[0]


def read_stored(text: str, *, source: str) -> ModelSpec | ModelProblem:
    """A model as it was stored. What is refused when a model is added may be in there: it was added earlier."""
    try:
        part = read_document(text, LIMITS)
    except UNREADABLE as error:
        return ModelProblem(source=source, problem=why(error))
    return _read_config(part, source)


def config_of(text: str) -> Mapping[str, object]:
    """The stored configuration, even an invalid one; empty if the text is not a mapping."""
    try:
        config = plain(read_document(text, LIMITS))
    except UNREADABLE:
        return {}
    return config if isinstance(config, Mapping) else {}


def _read_part(part: object, text: str, source: str, named_template: NamedTemplate) -> ReadModel | ModelProblem:
    """One model; `text` is empty where it is one of several."""
    spec = _read_config(part, source)
    if isinstance(spec, ModelProblem):
        return spec
    config = _with_templates(spec.config, named_template)
    for refused in refusals(config):
        line = line_at(part, ("template", refused.template))
        where = f"line {line}: " if line else ""
        problem = f"{where}template.{refused.template}: line {refused.line} of the template: {refused.problem}"
        return ModelProblem(source=source, name=spec.name, problem=problem)
    if text and config is spec.config:
        return ReadModel(spec=spec, text=text, digest=digest_of(text))
    spec = replace(spec, config=config, revision=revision_of(config))
    written = write_document(config)
    return ReadModel(spec=spec, text=written, digest=digest_of(written))


def _read_config(part: object, source: str) -> ModelSpec | ModelProblem:
    config = plain(part)
    name = config.get("name") if isinstance(config, dict) else None
    try:
        spec = read_model(with_plain_switches(config) if isinstance(config, dict) else config, source=source)
    except InvalidInput as error:
        wrong = wrong_values(config) if isinstance(config, Mapping) else []
        path: ConfigPath = wrong[0].path if wrong else tuple(error.field.split("."))
        line = line_at(part, path)
        problem = f"line {line}: {error.message}" if line else error.message
        return ModelProblem(source=source, name=name if isinstance(name, str) else "", problem=problem)
    return replace(spec, warnings=tuple(_warnings(spec, part)))


def plain(value: object) -> object:
    """A value without its lines, and without parts that are shared."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def line_at(part: object, path: ConfigPath) -> int:
    """The line of a key; 0 if it is not there."""
    line = 0
    for step in path:
        if isinstance(part, YamlMapping) and step in part:
            line = part.key_lines.get(str(step), 0)
            part = part[str(step)]
        elif isinstance(part, list) and isinstance(step, int) and step < len(part):
            part = part[step]
            line = part.line if isinstance(part, YamlMapping) else line
        else:
            return 0
    return line


def _warnings(spec: ModelSpec, part: object) -> Iterator[str]:
    """About keys and words that mean nothing, or come to nothing; not those that hold what others refer to."""
    problems: list[tuple[ConfigPath, str]] = [(key.path, key.sentence) for key in unknown_keys(spec.config)]
    problems += [(tuple(each.key.split(".")), each.sentence) for each in advice(spec.config)]
    for path, sentence in (*problems, *unknown_words(spec.config)):
        if not _is_anchored(part, path):
            line = line_at(part, path)
            yield f"line {line}: {sentence}" if line else sentence


def _is_anchored(part: object, path: ConfigPath) -> bool:
    for step in path[:-1]:
        if isinstance(part, YamlMapping):
            part = part.get(str(step))
        elif isinstance(part, list) and isinstance(step, int):
            part = part[step]
    return isinstance(part, YamlMapping) and path[-1] in part.anchored


def _with_templates(config: Mapping[str, object], named_template: NamedTemplate) -> Mapping[str, object]:
    """Put the content of template files in place of their names, as LocalAI does: `chat: x` means the file `x.tmpl`."""
    template_section = config.get("template")
    if not isinstance(template_section, Mapping):
        return config
    templates = {
        key: content
        for key in TEMPLATES
        if isinstance(name := template_section.get(key), str)
        and name
        and "\n" not in name
        and "{{" not in name
        and len(name) <= _LONGEST_TEMPLATE_NAME
        and (content := named_template(name)) is not None
    }
    return {**config, "template": {**template_section, **templates}} if templates else config
