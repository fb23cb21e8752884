"""Evaluates parsed templates with the rules of Go: scopes, fields, the types that functions take, what is printed.

A template comes from a stranger: work, depth and output have limits, so that none can stop a process.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from corral.templates.errors import TemplateFailed, ValueProblem
from corral.templates.functions import FUNCTIONS, MOST_CHARACTERS, TemplateFunction
from corral.templates.lexer import NumberTerm
from corral.templates.parser import (
    ActionNode,
    BranchNode,
    ChainTerm,
    FieldTerm,
    FunctionTerm,
    IncludeNode,
    JumpNode,
    LiteralTerm,
    Nodes,
    ParsedTemplate,
    Pipeline,
    RangeNode,
    TemplateCommand,
    TemplateNode,
    Term,
    TextNode,
    VariableTerm,
)
from corral.templates.printing import plain
from corral.templates.values import (
    MISSING,
    NilMap,
    NoValue,
    StringMap,
    StructValue,
    as_bytes,
    as_text,
    described,
    is_map,
    truth,
)

MOST_WORK: Final = 1_000_000
"""For one template: a command is worth 4, a value inside of lists and maps 1, as are 32 characters. About a second."""
MOST_WORK_FOR_A_REQUEST: Final = 3_000_000
"""For the templates of all messages and the one that holds them, or for all prompts: tens of thousands of them."""
MOST_DEPTH: Final = 80
"""Deepest nesting of blocks, parentheses and templates."""
_COMMAND: Final = 4
_CHARACTERS: Final = 32


@dataclass(slots=True)
class Allowance:
    """How much work is left, for one template or for several that make one prompt."""

    work: int = MOST_WORK


def execute(template: ParsedTemplate, data: StructValue, allowance: Allowance | None = None) -> str:
    """Render a template. TemplateFailed names the place and what is wrong with the values or too much."""
    evaluation = _Evaluation(template, data, allowance or Allowance())
    try:
        evaluation.walk(template.nodes, data)
    except ValueProblem as problem:
        raise evaluation.failed(str(problem)) from problem
    except RecursionError as error:
        raise evaluation.failed("values are nested too deeply") from error
    text = as_text(as_bytes("".join(evaluation.output)))
    return re.sub("[\udc80-\udcff]", "\ufffd", text)


class _Evaluation:
    def __init__(self, template: ParsedTemplate, data: StructValue, allowance: Allowance) -> None:
        self._template = template
        self._variables: list[tuple[str, object]] = [("$", data)]
        self._allowance = allowance
        self._depth = 0
        self._room = MOST_CHARACTERS
        self._line = 1
        self._source = ""
        self.output: list[str] = []

    def failed(self, problem: str) -> TemplateFailed:
        return TemplateFailed(self._template.name, self._line, self._source, problem)

    # Limits.

    def _spend(self, work: int) -> None:
        self._allowance.work -= work
        if self._allowance.work < 0:
            raise ValueProblem("the template does too much work")

    def _weigh(self, value: object) -> None:
        """Spend what it costs to go through a value; one that holds others many times, or itself, costs accordingly."""
        pending = [value]
        while pending:
            item = pending.pop()
            self._spend(1 + len(item) // _CHARACTERS if isinstance(item, str) else 1)
            if isinstance(item, list):
                pending.extend(item)
            elif isinstance(item, dict):
                pending.extend(item.values())
            elif isinstance(item, StructValue):
                pending.extend(item.fields.values())

    def _write(self, text: str) -> None:
        self._room -= len(text)
        self._spend(len(text) // _CHARACTERS)
        if self._room < 0:
            raise ValueProblem(f"the prompt would have more than {MOST_CHARACTERS} characters")
        self.output.append(text)

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise ValueProblem(f"more than {MOST_DEPTH} blocks and templates inside each other")
        yield
        self._depth -= 1

    @contextmanager
    def _block(self) -> Iterator[None]:
        """End the variables that are declared inside."""
        count = len(self._variables)
        with self._deeper():
            yield
        del self._variables[count:]

    # Statements.

    def walk(self, nodes: Nodes, dot: object) -> str:
        """Render statements. Returns `break` or `continue` if one of them ended it."""
        for node in nodes:
            self._spend(1)
            if jump := self._statement(node, dot):
                return jump
        return ""

    def _statement(self, node: TemplateNode, dot: object) -> str:
        match node:
            case TextNode(text):
                self._write(text)
            case ActionNode(pipeline):
                self._action(pipeline, dot)
            case BranchNode():
                return self._branch(node, dot)
            case RangeNode():
                return self._range(node, dot)
            case IncludeNode():
                self._include(node, dot)
            case JumpNode(word):
                return word
        return ""

    def _action(self, pipeline: Pipeline, dot: object) -> None:
        value = self._pipeline(pipeline, dot)
        if not pipeline.variables:
            self._weigh(value)
            self._write(plain(value))

    def _branch(self, node: BranchNode, dot: object) -> str:
        with self._block():
            for pipeline, body in node.cases:
                value = self._pipeline(pipeline, dot)
                if truth(value):
                    return self.walk(body, value if node.sets_dot else dot)
            return self.walk(node.otherwise, dot)

    def _range(self, node: RangeNode, dot: object) -> str:
        with self._block():
            items = self._items(self._pipeline(node.pipeline, dot), node.pipeline)
            count = len(self._variables)
            for key, item in items:
                self._spend(_COMMAND)
                self._set_range_variables(node.pipeline, key, item, count)
                if self.walk(node.body, item) == "break":
                    break
                del self._variables[count:]
            jump = "" if items else self.walk(node.otherwise, dot)
            return "" if jump == "break" else jump  # as in Go, where a range also takes the break in its else

    def _items(self, value: object, pipeline: Pipeline) -> Sequence[tuple[object, object]]:
        if isinstance(value, NoValue):
            return ()
        if isinstance(value, list):
            return list(enumerate(value))
        if is_map(value):
            return [(key, value[key]) for key in sorted(value, key=as_bytes)]
        if isinstance(value, int) and not isinstance(value, bool):
            if len(pipeline.variables) > 1:
                raise ValueProblem("range over a number has one variable")
            self._spend(max(0, value))
            return [(MISSING, type(value)(number)) for number in range(value)]
        raise ValueProblem(f"range cannot go through {described(value)}")

    def _set_range_variables(self, pipeline: Pipeline, key: object, item: object, count: int) -> None:
        """Set the variables of a range: those that it declares are the last ones before its body's."""
        values = (item,) if len(pipeline.variables) == 1 else (key, item)
        for place, (name, value) in enumerate(zip(pipeline.variables, values, strict=False)):
            if pipeline.assigns:
                self._assign(name, value)
            else:
                self._variables[count - len(pipeline.variables) + place] = (name, value)

    def _include(self, node: IncludeNode, dot: object) -> None:
        inner = self._pipeline(node.pipeline, dot) if node.pipeline else MISSING
        outer, self._variables = self._variables, [("$", inner)]
        with self._block():
            self.walk(self._template.defined.get(node.name, self._template.nodes), inner)
        self._variables = outer

    # Pipelines.

    def _pipeline(self, pipeline: Pipeline, dot: object) -> object:
        value: object = _NOTHING_PIPED
        for command in pipeline.commands:
            self._spend(_COMMAND)
            outer = self._line, self._source
            self._line, self._source = command.line, command.source
            value = self._command(command, dot, value)
            self._line, self._source = outer
            value = MISSING if value is None else value
        for name in pipeline.variables:
            if pipeline.assigns:
                self._assign(name, value)
            else:
                self._variables.append((name, value))
        return value

    def _assign(self, name: str, value: object) -> None:
        for index in range(len(self._variables) - 1, -1, -1):
            if self._variables[index][0] == name:
                self._variables[index] = (name, value)
                return
        raise ValueProblem(f"the variable {name} is not declared")

    def _variable(self, name: str) -> object:
        for declared, value in reversed(self._variables):
            if declared == name:
                return value
        raise ValueProblem(f"the variable {name} is not declared")

    def _command(self, command: TemplateCommand, dot: object, piped: object) -> object:
        first = command.terms[0]
        if isinstance(first, FunctionTerm):
            return self._call(first.name, command.terms[1:], dot, piped)
        if len(command.terms) > 1 or piped is not _NOTHING_PIPED:
            raise ValueProblem(f"{command.source} is no function, and takes no arguments")
        match first:
            case LiteralTerm(None):
                raise ValueProblem("nil is no command")
            case LiteralTerm(value):
                return value
            case NumberTerm():
                return first.ideal
        return self._reference(first, dot)

    def _reference(self, term: Term, dot: object) -> object:
        """Evaluate a term that is neither a literal nor a bare function."""
        match term:
            case FieldTerm(names):
                return self._fields(dot, names)
            case VariableTerm(name, names):
                return self._fields(self._variable(name), names)
            case ChainTerm(of, names):
                return self._fields(self._reference(of, dot), names)
            case FunctionTerm(name):
                value = self._call(name, (), dot, _NOTHING_PIPED)
                return MISSING if value is None else value
            case Pipeline():
                with self._deeper():
                    return self._pipeline(term, dot)
        raise AssertionError(term)

    def _fields(self, value: object, names: Sequence[str]) -> object:
        for name in names:
            value = self._field(value, name)
        return value

    def _field(self, value: object, name: str) -> object:
        if isinstance(value, NoValue):
            return MISSING
        if isinstance(value, StructValue) and name in value.fields:
            return value.fields[name]
        if is_map(value):
            return value.get(name, MISSING)
        if value is None:
            raise ValueProblem(f"nil has no field {name}")
        raise ValueProblem(f"there is no field {name} in {described(value)}")

    # Calls.

    def _call(self, name: str, terms: Sequence[Term], dot: object, piped: object) -> object:
        function = FUNCTIONS[name]
        count = len(terms) + (piped is not _NOTHING_PIPED)
        if count < len(function.parameters) or (count > len(function.parameters) and not function.variadic):
            least = " or more" if function.variadic else ""
            raise ValueProblem(f"{name} takes {len(function.parameters)}{least} arguments, not {count}")
        if name in ("and", "or"):
            return self._short_circuit(name, terms, dot, piped)
        arguments = [self._argument(term, dot, _wants(function, index)) for index, term in enumerate(terms)]
        if piped is not _NOTHING_PIPED:
            arguments.append(_fitting(piped, _wants(function, len(terms))))
        for argument in arguments:
            self._weigh(argument)
        result = function.call(*arguments)
        self._spend(len(result) // _CHARACTERS if isinstance(result, str | list) else 0)
        return result

    def _short_circuit(self, name: str, terms: Sequence[Term], dot: object, piped: object) -> object:
        value: object = None
        for term in terms:
            value = self._argument(term, dot, "any")
            if truth(value) == (name == "or"):
                return value
        return value if piped is _NOTHING_PIPED else piped

    def _argument(self, term: Term, dot: object, expected: str) -> object:
        match term:
            case NumberTerm():
                return _number(term, expected)
            case LiteralTerm(None):
                if expected in ("any", "map"):
                    return None if expected == "any" else NilMap()
                raise ValueProblem(f"nil where {expected} is expected")
            case LiteralTerm(value):
                if expected not in ("any", "bool" if isinstance(value, bool) else "string"):
                    raise ValueProblem(f"{plain(value)} where {expected} is expected")
                return value
        return _fitting(self._reference(term, dot), expected)


_NOTHING_PIPED: Final = object()


def _wants(function: TemplateFunction, index: int) -> str:
    return function.parameters[index] if index < len(function.parameters) else function.variadic


def _number(term: NumberTerm, expected: str) -> object:
    if expected == "any":
        return term.ideal
    if expected == "int" and term.whole is not None:
        return term.whole
    raise ValueProblem(f"the number {plain(term.ideal)} where {expected} is expected")


def _fitting(value: object, expected: str) -> object:
    """Return the value as an argument of that type. ValueProblem: it is of another one."""
    if expected == "any":
        return None if isinstance(value, NoValue) else value
    if expected == "map" and isinstance(value, NoValue):
        return NilMap()
    fits = {
        "string": isinstance(value, str),
        "int": type(value) is int,
        "bool": isinstance(value, bool),
        "map": is_map(value) and not isinstance(value, StringMap),
    }
    if not fits[expected]:
        raise ValueProblem(f"{described(value)} where {expected} is expected")
    return value
