"""Advice to the author of a configuration about oddities of its templates that do not prevent its use. Pure."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from corral.base.config_fields import Config, value_at
from corral.templates.errors import TemplateRefused
from corral.templates.parser import (
    ActionNode,
    BranchNode,
    ChainTerm,
    FieldTerm,
    IncludeNode,
    Nodes,
    Pipeline,
    RangeNode,
    Term,
    VariableTerm,
    parse,
)
from corral.templates.prompts import TEMPLATES
from corral.templates.template_data import SHAPES, Shape


class TemplateAdvice(NamedTuple):
    key: str
    """The key of the configuration that the advice is about."""
    sentence: str


def advice(config: Config) -> list[TemplateAdvice]:
    """What to tell the author of a configuration. Templates that cannot be parsed are passed over."""
    hints = [TemplateAdvice("system_prompt", sentence) for sentence in _unseen_system_prompt(config)]
    for name in TEMPLATES:
        source = value_at(config, f"template.{name}")
        if isinstance(source, str) and source:
            key = f"template.{name}"
            hints += [TemplateAdvice(key, f"{key}: {sentence}") for sentence in _absent_fields(source, name)]
    return hints


def _unseen_system_prompt(config: Config) -> Iterator[str]:
    template = value_at(config, "template")
    if not value_at(config, "system_prompt") or not isinstance(template, Mapping):
        return
    sources = [source for name in ("chat", "chat_message", "function") if isinstance(source := template.get(name), str)]
    is_shown = template.get("use_tokenizer_template") is True or any(".SystemPrompt" in source for source in sources)
    if any(sources) and not is_shown:
        yield "system_prompt has no effect: no template shows it, as {{.SystemPrompt}} would"


def _absent_fields(source: str, name: str) -> Iterator[str]:
    """Say which fields the template asks its data for that are never there."""
    try:
        parsed = parse(source, name)
    except TemplateRefused:
        return
    for line, field in dict.fromkeys(_FieldSearch(SHAPES[name]).nodes(parsed.nodes, is_root=True)):
        yield f"line {line} of the template: there is no .{field} here, and a request that comes there fails"


class _FieldSearch:
    """Finds fields of the data itself. Inside of `with` and `range`, `.` is something else."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def nodes(self, nodes: Nodes, *, is_root: bool) -> Iterator[tuple[int, str]]:
        for node in nodes:
            match node:
                case ActionNode(pipeline):
                    yield from self._pipeline(pipeline, is_root=is_root)
                case BranchNode(sets_dot, cases, otherwise):
                    for pipeline, body in cases:
                        yield from self._pipeline(pipeline, is_root=is_root)
                        yield from self.nodes(body, is_root=is_root and not sets_dot)
                    yield from self.nodes(otherwise, is_root=is_root)
                case RangeNode(pipeline, body, otherwise):
                    yield from self._pipeline(pipeline, is_root=is_root)
                    yield from self.nodes(body, is_root=False)
                    yield from self.nodes(otherwise, is_root=is_root)
                case IncludeNode(pipeline=Pipeline() as pipeline):
                    yield from self._pipeline(pipeline, is_root=is_root)

    def _pipeline(self, pipeline: Pipeline, *, is_root: bool) -> Iterator[tuple[int, str]]:
        for command in pipeline.commands:
            for term in command.terms:
                yield from self._term(term, command.line, is_root=is_root)

    def _term(self, term: Term, line: int, *, is_root: bool) -> Iterator[tuple[int, str]]:
        match term:
            case FieldTerm((first, *_)) if is_root and first not in self._shape.fields:
                yield line, first
            case VariableTerm("$", (first, *_)) if first not in self._shape.fields:
                yield line, first
            case ChainTerm(of):
                yield from self._term(of, line, is_root=is_root)
            case Pipeline():
                yield from self._pipeline(term, is_root=is_root)
