"""Reads grammars in llama.cpp's form: which texts they match, and random texts of theirs.

It knows as much of the form as grammars here use, and refuses the rest. Real llama.cpp reads them in
`tests/backends/integration/test_llama_cpp.py`.
"""

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r'\s*(?:(?P<literal>"(?:[^"\\]|\\.)*")|(?P<class>\[(?:[^\]\\]|\\.)*\])|(?P<name>[a-z][a-z0-9-]*)'
    r"|(?P<mark>[()|*+?])|(?P<count>\{\d+(?:,\d*)?\}))"
)
_ESCAPE = re.compile(r'\\(x[0-9A-F]{2}|[nrt"\\\[\]])')
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}
_POOL = "abcxyzABZ0189 _-./:,é€😀\u2028{}[]()'@"


@dataclass(frozen=True, eq=False)
class Node:
    kind: str
    parts: tuple["Node", ...] = ()
    text: str = ""
    ranges: tuple[tuple[str, str], ...] = ()
    least: int = 0
    most: int | None = None


@dataclass
class Grammar:
    rules: dict[str, Node]
    costs: dict[str, int] = field(default_factory=dict)

    def matches(self, text: str) -> bool:
        memo: dict[tuple[Node, int], frozenset[int]] = {}
        return len(text) in self._ends(self.rules["root"], text, 0, memo)

    def sample(self, source: random.Random, budget: int = 40) -> str:
        """Return a random text. When the budget of decisions is used up, the shortest way ends it."""
        left = [budget]
        return self._sample(self.rules["root"], source, left)

    def _ends(self, node: Node, text: str, at: int, memo: dict[tuple[Node, int], frozenset[int]]) -> frozenset[int]:
        if (node, at) not in memo:
            memo[node, at] = frozenset(self._found(node, text, at, memo))
        return memo[node, at]

    def _found(self, node: Node, text: str, at: int, memo: dict[tuple[Node, int], frozenset[int]]) -> Iterable[int]:
        def after(part: Node, places: Iterable[int]) -> set[int]:
            return {end for place in places for end in self._ends(part, text, place, memo)}

        match node.kind:
            case "literal":
                return {at + len(node.text)} if text.startswith(node.text, at) else set()
            case "class":
                return {at + 1} if at < len(text) and _is_in(node, text[at]) else set()
            case "name":
                return self._ends(self.rules[node.text], text, at, memo)
            case "any":
                return set().union(*(self._ends(part, text, at, memo) for part in node.parts))
            case "row":
                places = {at}
                for part in node.parts:
                    places = after(part, places)
                return places
        return _repeated(node, {at}, lambda places: after(node.parts[0], places))

    def _sample(self, node: Node, source: random.Random, left: list[int]) -> str:
        left[0] -= 1
        match node.kind:
            case "literal":
                return node.text
            case "class":
                return source.choice([character for character in _characters(node) if _is_in(node, character)])
            case "name":
                return self._sample(self.rules[node.text], source, left)
            case "any":
                cheapest = min(node.parts, key=self._cost)
                return self._sample(cheapest if left[0] <= 0 else source.choice(node.parts), source, left)
            case "row":
                return "".join(self._sample(part, source, left) for part in node.parts)
        most = node.least if left[0] <= 0 else min(node.least + 3, node.least + 3 if node.most is None else node.most)
        count = source.randint(node.least, most)
        return "".join(self._sample(node.parts[0], source, left) for _ in range(count))

    def _cost(self, node: Node) -> int:
        """Return how many rules at least are below each other until the text ends."""
        match node.kind:
            case "literal" | "class":
                return 0
            case "name":
                return self.costs.get(node.text, 10**6)
            case "any":
                return min(map(self._cost, node.parts))
            case "row":
                return max(map(self._cost, node.parts), default=0)
        return self._cost(node.parts[0]) if node.least else 0

    def weigh(self) -> None:
        for _ in self.rules:
            found = {name: self._cost(node) + 1 for name, node in self.rules.items()}
            if found == self.costs:
                return
            self.costs = found


def _repeated(node: Node, places: set[int], after: Callable[[Iterable[int]], set[int]]) -> set[int]:
    found, count = set(places) if node.least == 0 else set(), 0
    while places and (node.most is None or count < node.most):
        count += 1
        places = after(places) - (found if count > node.least else set())
        if count >= node.least:
            found |= places
    return found


def _is_in(node: Node, character: str) -> bool:
    return any(low <= character <= high for low, high in node.ranges) != (node.text == "^")


def _characters(node: Node) -> list[str]:
    if node.text == "^":
        return list(_POOL)
    return [chr(code) for low, high in node.ranges for code in range(ord(low), ord(high) + 1)]


def read_grammar(source: str) -> Grammar:
    """Return the grammar. ValueError when it is not one, or names a rule that is not there."""
    rules = {}
    for line in source.splitlines():
        name, arrow, body = line.partition(" ::= ")
        if not arrow or not re.fullmatch(r"[a-z][a-z0-9-]*", name) or name in rules:
            raise ValueError(f"no rule: {line!r}")
        reader = _Reader(_tokens(body))
        rules[name] = reader.alternatives()
        if reader.tokens:
            raise ValueError(f"more than a rule: {line!r}")
    missing = {node.text for rule in rules.values() for node in _all(rule) if node.kind == "name"} - rules.keys()
    if missing:
        raise ValueError(f"no rules for {missing}")
    grammar = Grammar(rules)
    grammar.weigh()
    return grammar


def _all(node: Node) -> Iterable[Node]:
    yield node
    for part in node.parts:
        yield from _all(part)


def _tokens(body: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while body[at:].strip():
        token = _TOKEN.match(body, at)
        if token is None or token.lastgroup is None:
            raise ValueError(f"cannot be read: {body[at:]!r}")
        found.append((token.lastgroup, token[token.lastgroup]))
        at = token.end()
    return found


class _Reader:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens = tokens

    def alternatives(self) -> Node:
        found = [self._row()]
        while self.tokens and self.tokens[0][1] == "|" and self.tokens[0][0] == "mark":
            self.tokens.pop(0)
            found.append(self._row())
        return found[0] if len(found) == 1 else Node("any", tuple(found))

    def _row(self) -> Node:
        parts: list[Node] = []
        while self.tokens and self.tokens[0] not in (("mark", "|"), ("mark", ")")):
            kind, text = self.tokens.pop(0)
            if kind == "count" or (kind == "mark" and text != "("):
                parts[-1] = Node("repeated", (parts[-1],), **_counts(text))  # type: ignore[arg-type]
            elif kind == "mark":
                parts.append(self.alternatives())
                if self.tokens.pop(0) != ("mark", ")"):
                    raise ValueError("a bracket is open")
            else:
                parts.append(_leaf(kind, text))
        if not parts:
            raise ValueError("nothing where something must be")
        return Node("row", tuple(parts))


def _counts(text: str) -> dict[str, int | None]:
    if text in "*+?":
        return {"least": int(text == "+"), "most": 1 if text == "?" else None}
    least, comma, most = text[1:-1].partition(",")
    return {"least": int(least), "most": int(most) if most else None if comma else int(least)}


def _leaf(kind: str, text: str) -> Node:
    if kind == "literal":
        return Node("literal", text=_ESCAPE.sub(lambda escape: _unescaped(escape[1]), text[1:-1]))
    if kind == "name":
        return Node("name", text=text)
    negated = text[1] == "^"
    characters = re.findall(r'\\x[0-9A-F]{2}|\\[nrt"\\\[\]]|[^\\]', text[2 if negated else 1 : -1], re.DOTALL)
    ranges, at = [], 0
    while at < len(characters):
        is_range = at + 2 < len(characters) and characters[at + 1] == "-"
        low, high = characters[at], characters[at + 2 if is_range else at]
        ranges.append((_character(low), _character(high)))
        at += 3 if is_range else 1
    return Node("class", text="^" if negated else "", ranges=tuple(ranges))


def _character(text: str) -> str:
    return _unescaped(text[1:]) if len(text) > 1 else text


def _unescaped(escape: str) -> str:
    return chr(int(escape[1:], 16)) if escape[0] == "x" else _CONTROLS.get(escape, escape)
