"""Parses templates: statements, pipelines and their scopes as Go has them, all names of functions known beforehand."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Final, TypeVar

import msgspec

from corral.templates.errors import TemplateRefused, ValueProblem
from corral.templates.functions import FUNCTIONS
from corral.templates.lexer import NumberTerm, Token, TokenKind, character, number, split, unquoted
from corral.templates.printing import check_format

Read = TypeVar("Read")
OWN_NAME: Final = "prompt"
"""What a template calls itself: LocalAI gives all of them this name."""
LONGEST: Final = 128 * 1024
"""Characters of a template: some of them are kept in memory."""
MOST_NESTED: Final = 40
"""Blocks and parentheses inside each other: far more than anyone writes, and far from the interpreter's own limit."""


class FieldTerm(msgspec.Struct, frozen=True):
    """`.A.B`: fields of dot; `.` alone has none."""

    names: tuple[str, ...]


class VariableTerm(msgspec.Struct, frozen=True):
    name: str
    names: tuple[str, ...]


class FunctionTerm(msgspec.Struct, frozen=True):
    name: str


class LiteralTerm(msgspec.Struct, frozen=True):
    """A text, `true`, `false` or, with None, `nil`."""

    value: str | bool | None


class ChainTerm(msgspec.Struct, frozen=True):
    """Fields of what a function or a pipeline in parentheses returns."""

    of: "FunctionTerm | Pipeline"
    names: tuple[str, ...]


class TemplateCommand(msgspec.Struct, frozen=True):
    terms: "tuple[Term, ...]"
    line: int
    source: str


class Pipeline(msgspec.Struct, frozen=True):
    variables: tuple[str, ...]
    assigns: bool
    """Whether the variables exist already: `=`, not `:=`."""
    commands: tuple[TemplateCommand, ...]


Term = FieldTerm | VariableTerm | FunctionTerm | LiteralTerm | NumberTerm | ChainTerm | Pipeline


class TextNode(msgspec.Struct, frozen=True):
    text: str


class ActionNode(msgspec.Struct, frozen=True):
    pipeline: Pipeline


class BranchNode(msgspec.Struct, frozen=True):
    """`if` and `with`, with all their `else if` and `else with`."""

    sets_dot: bool
    cases: "tuple[tuple[Pipeline, Nodes], ...]"
    otherwise: "Nodes"


class RangeNode(msgspec.Struct, frozen=True):
    pipeline: Pipeline
    body: "Nodes"
    otherwise: "Nodes"


class JumpNode(msgspec.Struct, frozen=True):
    """`break` or `continue`."""

    word: str


class IncludeNode(msgspec.Struct, frozen=True):
    """`template`, and `block` where it stands."""

    name: str
    pipeline: Pipeline | None
    line: int


TemplateNode = TextNode | ActionNode | BranchNode | RangeNode | JumpNode | IncludeNode
Nodes = tuple[TemplateNode, ...]


class ParsedTemplate(msgspec.Struct, frozen=True):
    name: str
    nodes: Nodes
    defined: Mapping[str, Nodes]


def parse(text: str, name: str = OWN_NAME) -> ParsedTemplate:
    """Parse a template. TemplateRefused has the line and names what is not understood or not offered."""
    if len(text) > LONGEST:
        raise TemplateRefused(name, 1, f"has {len(text)} characters; {LONGEST} are the most")
    return _parsed(text, name)


@lru_cache(maxsize=512)
def _parsed(text: str, name: str) -> ParsedTemplate:
    parser = _Parser(text, name)
    nodes = parser.whole()
    return ParsedTemplate(name, nodes, parser.defined)


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._name = name
        self._tokens = split(text, name)
        self._index = 0
        self._variables = ["$"]
        self._loops = 0
        self._depth = 0
        self._included: list[tuple[str, int]] = []
        self.defined: dict[str, Nodes] = {}

    # Tokens.

    def _peek(self) -> Token:
        return self._tokens[self._index]

    def _next(self) -> Token:
        token = self._tokens[self._index]
        self._index = min(self._index + 1, len(self._tokens) - 1)
        return token

    def _at(self, kind: TokenKind) -> bool:
        return self._peek().kind is kind

    def _at_keyword(self, *words: str) -> bool:
        return self._peek().kind is TokenKind.KEYWORD and self._peek().text in words

    def _expect(self, kind: TokenKind, where: str) -> Token:
        if not self._at(kind):
            raise self._unexpected(where)
        return self._next()

    def _unexpected(self, where: str) -> TemplateRefused:
        token = self._peek()
        if token.kind is TokenKind.END:
            return self._refused(f"the template ends inside {where}")
        return self._refused(f"unexpected {token.text} in {where}")

    def _refused(self, problem: str, line: int = 0) -> TemplateRefused:
        return TemplateRefused(self._name, line or self._peek().line, problem)

    # Statements.

    def whole(self) -> Nodes:
        nodes: list[TemplateNode] = []
        while not self._at(TokenKind.END):
            if self._opens("define"):
                self._index += 2
                name = self._template_name("define")
                self._expect(TokenKind.CLOSE, "define")
                self._define(name, "define")
            elif self._opens("end", "else"):
                raise self._refused(f"unexpected {{{{{self._tokens[self._index + 1].text}}}}}")
            else:
                nodes.append(self._statement())
        for name, line in self._included:
            if name not in self.defined and name != OWN_NAME:
                raise self._refused(f'no template "{name}" is defined', line)
        return tuple(nodes)

    def _opens(self, *words: str) -> bool:
        after = self._tokens[min(self._index + 1, len(self._tokens) - 1)]
        return self._at(TokenKind.OPEN) and after.kind is TokenKind.KEYWORD and after.text in words

    def _body(self, keyword: str) -> Nodes:
        nodes: list[TemplateNode] = []
        while not self._opens("end", "else"):
            if self._at(TokenKind.END):
                raise self._refused(f"{{{{{keyword}}}}} has no {{{{end}}}}")
            nodes.append(self._statement())
        return tuple(nodes)

    def _statement(self) -> TemplateNode:
        token = self._next()
        if token.kind is TokenKind.TEXT:
            return TextNode(token.text)
        if self._at_keyword("if", "with"):
            return self._branch(self._next().text)
        if self._at_keyword("range"):
            self._next()
            return self._range()
        if self._at_keyword("break", "continue"):
            return self._jump(self._next().text)
        if self._at_keyword("template", "block"):
            return self._include(self._next())
        return ActionNode(self._pipeline("an action", TokenKind.CLOSE))

    def _branch(self, word: str) -> BranchNode:
        cases: list[tuple[Pipeline, Nodes]] = []
        otherwise: Nodes = ()
        with self._scope():
            while True:
                pipeline = self._pipeline(word, TokenKind.CLOSE)
                cases.append((pipeline, self._body(word)))
                if not self._else():
                    break
                if self._at_keyword(word):
                    self._next()
                    continue
                self._expect(TokenKind.CLOSE, "else")
                otherwise = self._last_body(word)
                break
        return BranchNode(word == "with", tuple(cases), otherwise)

    def _range(self) -> RangeNode:
        with self._scope():
            pipeline = self._pipeline("range", TokenKind.CLOSE)
            self._loops += 1
            body = self._body("range")
            self._loops -= 1
            otherwise: Nodes = ()
            if self._else():
                self._expect(TokenKind.CLOSE, "else")
                otherwise = self._last_body("range")
        return RangeNode(pipeline, body, otherwise)

    def _else(self) -> bool:
        """Go behind `else` or behind `end` with its braces; return whether it was `else`."""
        self._next()
        if self._next().text == "else":
            return True
        self._expect(TokenKind.CLOSE, "end")
        return False

    def _last_body(self, word: str) -> Nodes:
        body = self._body(word)
        if self._else():
            raise self._refused(f"{{{{{word}}}}} has a second {{{{else}}}}")
        return body

    def _jump(self, word: str) -> JumpNode:
        if not self._loops:
            raise self._refused(f"{{{{{word}}}}} is outside of {{{{range}}}}")
        self._expect(TokenKind.CLOSE, word)
        return JumpNode(word)

    def _include(self, token: Token) -> IncludeNode:
        name = self._template_name(token.text)
        pipeline = None
        if token.text == "block" or not self._at(TokenKind.CLOSE):
            pipeline = self._pipeline(token.text, TokenKind.CLOSE)
        else:
            self._next()
        if token.text == "block":
            self._define(name, "block")
        self._included.append((name, token.line))
        return IncludeNode(name, pipeline, token.line)

    def _template_name(self, where: str) -> str:
        if not (self._at(TokenKind.STRING) or self._at(TokenKind.RAW)):
            raise self._unexpected(where)
        return self._text_of(self._next())

    def _define(self, name: str, where: str) -> None:
        """Parse a body that sees no variables of where it stands."""
        if name in self.defined or name == OWN_NAME:
            raise self._refused(f'template "{name}" is defined twice')
        outer, self._variables = self._variables, ["$"]
        loops, self._loops = self._loops, 0
        with self._scope():
            body = self._body(where)
            if self._else():
                raise self._refused(f"unexpected {{{{else}}}} in {where}")
        self._variables, self._loops = outer, loops
        self.defined[name] = body

    @contextmanager
    def _nested(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > MOST_NESTED:
            raise self._refused(f"more than {MOST_NESTED} blocks and parentheses inside each other")
        yield
        self._depth -= 1

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """End the variables that are declared inside."""
        count = len(self._variables)
        with self._nested():
            yield
        del self._variables[count:]

    # Pipelines.

    def _pipeline(self, where: str, end: TokenKind) -> Pipeline:
        variables, assigns = self._declarations(where)
        if self._at(end):
            raise self._refused(f"a value is missing in {where}")
        commands = [self._command(where)]
        while self._at(TokenKind.PIPE):
            self._next()
            commands.append(self._command(where))
        self._expect(end, where)
        for command in commands[1:]:
            if isinstance(command.terms[0], LiteralTerm | NumberTerm) or command.terms[0] == FieldTerm(()):
                raise self._refused(f"{command.source} is no function", command.line)
        return Pipeline(variables, assigns, tuple(commands))

    def _declarations(self, where: str) -> tuple[tuple[str, ...], bool]:
        names: list[str] = []
        while self._at(TokenKind.VARIABLE):
            after = self._tokens[self._index + 1]
            if after.kind not in (TokenKind.ASSIGN, TokenKind.DECLARE) and after.text != ",":
                if names:
                    raise self._refused(f"variables of {where} get no value")
                break
            names.append(self._next().text)
            self._variables.append(names[-1])
            if self._next().text != ",":
                return tuple(names), after.kind is TokenKind.ASSIGN
            if where != "range" or len(names) > 1 or not self._at(TokenKind.VARIABLE):
                raise self._refused(f"too many variables in {where}")
        return (), False

    def _command(self, where: str) -> TemplateCommand:
        first = self._peek()
        terms: list[Term] = []
        while True:
            term = self._operand()
            if term is None:
                break
            terms.append(term)
            if not self._peek().spaced:
                break
        if not terms or self._peek().kind not in (TokenKind.CLOSE, TokenKind.RIGHT, TokenKind.PIPE):
            raise self._unexpected(where)
        source = self._text[first.start : self._tokens[self._index - 1].end]
        self._check_printf(terms, first.line)
        return TemplateCommand(tuple(terms), first.line, source)

    def _check_printf(self, terms: list[Term], line: int) -> None:
        if terms[0] == FunctionTerm("printf") and len(terms) > 1 and isinstance(terms[1], LiteralTerm):
            self._read(check_format, str(terms[1].value), line)

    def _read(self, reader: Callable[[str], Read], text: str, line: int) -> Read:
        """Read a part of the text, and add the place to what is wrong with it."""
        try:
            return reader(text)
        except ValueProblem as problem:
            raise self._refused(str(problem), line) from problem

    def _operand(self) -> Term | None:
        term = self._term()
        names: list[str] = []
        while term is not None and self._at(TokenKind.FIELD) and not self._peek().spaced:
            names.append(self._next().text[1:])
        if not names or term is None:
            return term
        match term:
            case FieldTerm(first) if first:
                return FieldTerm((*first, *names))
            case VariableTerm(name, ()):
                return VariableTerm(name, tuple(names))
            case FunctionTerm() | Pipeline():
                return ChainTerm(term, tuple(names))
        raise self._refused(f"a field .{names[0]} of a plain value")

    def _term(self) -> Term | None:
        token = self._peek()
        match token.kind:
            case TokenKind.WORD:
                return self._function(self._next())
            case TokenKind.VARIABLE:
                return self._variable(self._next())
            case TokenKind.FIELD:
                return FieldTerm((self._next().text[1:],))
            case TokenKind.DOT:
                self._next()
                return FieldTerm(())
            case TokenKind.LEFT:
                self._next()
                with self._nested():  # variables of parentheses live on, as in Go
                    return self._pipeline("parentheses", TokenKind.RIGHT)
        return self._literal()

    def _literal(self) -> Term | None:
        token = self._peek()
        match token.kind:
            case TokenKind.STRING | TokenKind.RAW:
                return LiteralTerm(self._text_of(self._next()))
            case TokenKind.NUMBER:
                return self._read(number, self._next().text, token.line)
            case TokenKind.CHARACTER:
                return self._read(character, self._next().text, token.line)
            case TokenKind.KEYWORD if token.text in _CONSTANTS:
                return LiteralTerm(_CONSTANTS[self._next().text])
        return None

    def _function(self, token: Token) -> FunctionTerm:
        if token.text not in FUNCTIONS:
            raise self._refused(f"the function {token.text} is not offered", token.line)
        return FunctionTerm(token.text)

    def _variable(self, token: Token) -> VariableTerm:
        if token.text not in self._variables:
            raise self._refused(f"the variable {token.text} is not declared", token.line)
        return VariableTerm(token.text, ())

    def _text_of(self, token: Token) -> str:
        if token.kind is TokenKind.RAW:
            return token.text[1:-1].replace("\r", "")
        return self._read(unquoted, token.text, token.line)


_CONSTANTS: Final[Mapping[str, bool | None]] = {"true": True, "false": False, "nil": None}
