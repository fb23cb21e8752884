"""Renders prompts from messages, for backends that do not know their model's format. Pure.

Model configurations carry templates in the language of Go's text/template. Of that language this is the part which
their chat templates use: fields, `if`/`else if`/`else`/`end`, a few functions, pipes, and trimming by `-`. A template
that needs more is refused with the place, never rendered half.

    {{if eq .RoleName "assistant"}}A{{else}}Q{{end}}: {{.Content}}
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from corral.base.errors import CorralError
from corral.rpc.messages import Message
from corral.wire.adapter import PromptTemplates

Fields = Mapping[str, object]

_ACTION: Final = re.compile(r"(?:\s*\{\{-\s|\{\{)(.*?)(?:\s-\}\}\s*|\}\})", re.DOTALL)
_WORD: Final = re.compile(r'\s*(?:("(?:\\.|[^"\\])*")|(`[^`]*`)|(-?\d+)|(\.[A-Za-z_]\w*)|([A-Za-z_]\w*)|([()|]))')
_ROLES: Final = {"user": "USER", "assistant": "ASSISTANT", "system": "SYSTEM"}


class TemplateNotUsable(CorralError):
    """The model's prompt template cannot be used."""

    code = "template_not_usable"


def render_chat(messages: Sequence[Message], templates: PromptTemplates) -> str:
    """Render each message with its template, join them, and render the whole with the chat template. Without
    templates, join the contents."""
    last = len(messages) - 1
    parts = [
        render(templates.chat_message, _message_fields(message, index, is_last=index == last))
        if templates.chat_message
        else message.content
        for index, message in enumerate(messages)
    ]
    joined = templates.joined_by.join(parts)
    if not templates.chat:
        return joined + templates.joined_by
    system = next((message.content for message in messages if message.role == "system"), "")
    return render(templates.chat, {"Input": joined, "SystemPrompt": system, "SuppressSystemPrompt": False})


def render_completion(prompt: str, templates: PromptTemplates) -> str:
    return render(templates.completion, {"Input": prompt, "SystemPrompt": ""}) if templates.completion else prompt


def _message_fields(message: Message, index: int, *, is_last: bool) -> Fields:
    calls = json.loads(message.tool_calls) if message.tool_calls else None
    return {
        "RoleName": message.role,
        "Role": _ROLES.get(message.role, message.role),
        "Content": message.content,
        "FunctionCall": calls,
        "FunctionName": message.name,
        "Function": bool(calls),
        "MessageIndex": index,
        "LastMessage": is_last,
        "SystemPrompt": "",
    }


def render(template: str, fields: Fields) -> str:
    return "".join(_run(_parsed(template), fields))


# Parsing.


@dataclass(frozen=True, slots=True)
class _Text:
    text: str


@dataclass(frozen=True, slots=True)
class _Show:
    what: "_Expression"


@dataclass(frozen=True, slots=True)
class _Choice:
    branches: "tuple[tuple[_Expression | None, tuple[_Node, ...]], ...]"


_Node = _Text | _Show | _Choice
_Expression = Callable[[Fields], object]


@lru_cache(maxsize=256)
def _parsed(template: str) -> tuple[_Node, ...]:
    tokens = list(_split(template))
    nodes, ending, rest = _block(tokens)
    if ending or rest:
        raise TemplateNotUsable(f"the template has a stray {{{{{ending}}}}}")
    return nodes


def _split(template: str) -> Iterator[tuple[bool, str]]:
    """Split into text and actions alternately; white space that an action trims is removed."""
    position = 0
    for match in _ACTION.finditer(template):
        yield False, template[position : match.start()]
        yield True, match[1].strip()
        position = match.end()
    yield False, template[position:]


def _block(tokens: list[tuple[bool, str]]) -> tuple[tuple[_Node, ...], str, list[tuple[bool, str]]]:
    """Return the nodes up to `else` or `end`, that word, and the remaining tokens."""
    nodes: list[_Node] = []
    while tokens:
        (is_action, text), *tokens = tokens
        if not is_action:
            nodes.append(_Text(text))
        elif text == "end" or text == "else" or text.startswith("else "):
            return tuple(nodes), text, tokens
        elif text.startswith("if "):
            node, tokens = _choice(text, tokens)
            nodes.append(node)
        elif not text.startswith("/*"):
            nodes.append(_Show(_expression(text)))
    return tuple(nodes), "", []


def _choice(opening: str, tokens: list[tuple[bool, str]]) -> tuple[_Choice, list[tuple[bool, str]]]:
    branches: list[tuple[_Expression | None, tuple[_Node, ...]]] = []
    condition: _Expression | None = _expression(opening.removeprefix("if "))
    while True:
        nodes, ending, tokens = _block(tokens)
        branches.append((condition, nodes))
        if ending == "end":
            return _Choice(tuple(branches)), tokens
        if not ending or condition is None:
            raise TemplateNotUsable("an {{if}} of the template has no {{end}}")
        rest = ending.removeprefix("else").strip()
        condition = _expression(rest.removeprefix("if ")) if rest else None


# Expressions.


def _expression(text: str) -> _Expression:
    words = list(_words(text))
    expression, rest = _pipeline(words, text)
    if rest:
        raise TemplateNotUsable(f"the template's {{{{{text}}}}} cannot be read")
    return expression


def _words(text: str) -> Iterator[str]:
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _WORD.match(text, position)
        if match is None:
            raise TemplateNotUsable(f"the template's {{{{{text}}}}} cannot be read")
        yield match[0].strip()
        position = match.end()


def _pipeline(words: list[str], whole: str) -> tuple[_Expression, list[str]]:
    """Parse a pipeline: `a | f` is `f a`."""
    expression, words = _call(words, whole, None)
    while words and words[0] == "|":
        expression, words = _call(words[1:], whole, expression)
    return expression, words


def _call(words: list[str], whole: str, piped: _Expression | None) -> tuple[_Expression, list[str]]:
    """Parse a single value, or a function with its arguments."""
    if not words:
        raise TemplateNotUsable(f"the template's {{{{{whole}}}}} cannot be read")
    function = _FUNCTIONS.get(words[0])
    if function is None and words[0][:1].isalpha() and words[0] not in _CONSTANTS:
        raise TemplateNotUsable(f"the template's {{{{{whole}}}}} needs {words[0]}, which is not offered")
    arguments: list[_Expression] = []
    words = words if function is None else words[1:]
    while words and words[0] not in ("|", ")"):
        argument, words = _operand(words, whole)
        arguments.append(argument)
    if piped is not None:
        arguments.append(piped)
    if function is None:
        if len(arguments) != 1:
            raise TemplateNotUsable(f"the template's {{{{{whole}}}}} cannot be read")
        return arguments[0], words
    return _applied(function, tuple(arguments)), words


def _applied(function: Callable[..., object], arguments: tuple[_Expression, ...]) -> _Expression:
    def apply(fields: Fields) -> object:
        try:
            return function(*(argument(fields) for argument in arguments))
        except TypeError as error:
            raise TemplateNotUsable(f"a function of the template is called wrongly: {error}") from error

    return apply


def _operand(words: list[str], whole: str) -> tuple[_Expression, list[str]]:
    first, *rest = words
    if first == "(":
        inner, rest = _pipeline(rest, whole)
        if not rest or rest[0] != ")":
            raise TemplateNotUsable(f"the template's {{{{{whole}}}}} lacks a parenthesis")
        return inner, rest[1:]
    if first.startswith("."):
        return _field(first[1:]), rest
    if first in _CONSTANTS:
        return _constant(_CONSTANTS[first]), rest
    if first[0] in '"`' or first.lstrip("-").isdecimal():
        return _constant(first[1:-1] if first[0] == "`" else json.loads(first)), rest
    raise TemplateNotUsable(f"the template's {{{{{whole}}}}} cannot be read")


def _constant(value: object) -> _Expression:
    return lambda _: value


def _field(name: str) -> _Expression:
    def look(fields: Fields) -> object:
        if name not in fields:
            raise TemplateNotUsable(f"the template wants .{name}, which there is not")
        return fields[name]

    return look


def _any(*values: object) -> object:
    return next((value for value in values if value), values[-1] if values else "")


def _all(*values: object) -> object:
    return next((value for value in values if not value), values[-1] if values else "")


_CONSTANTS: Final[Mapping[str, object]] = {"true": True, "false": False}
_FUNCTIONS: Final[Mapping[str, Callable[..., object]]] = {
    "eq": lambda first, *others: any(first == other for other in others),
    "ne": lambda first, other: first != other,
    "not": lambda value: not value,
    "and": _all,
    "or": _any,
    "trim": lambda text: str(text).strip(),
    "upper": lambda text: str(text).upper(),
    "lower": lambda text: str(text).lower(),
    "toJson": lambda value: json.dumps(value, ensure_ascii=False),
}


# Running.


def _run(nodes: Sequence[_Node], fields: Fields) -> Iterator[str]:
    for node in nodes:
        match node:
            case _Text(text):
                yield text
            case _Show(what):
                yield _formatted(what(fields))
            case _Choice(branches):
                chosen = next((body for test, body in branches if test is None or test(fields)), ())
                yield from _run(chosen, fields)


def _formatted(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
