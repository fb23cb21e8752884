"""Import cycles: the shortest of each knot of modules, also such as hide in functions or in imports for types."""

import ast
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from .sources import Finding, Source


class Kind(IntEnum):
    """How an import is made, from the most to the least binding."""

    PLAIN = 0
    IN_FUNCTION = 1
    FOR_TYPES = 2


CYCLE = {
    Kind.PLAIN: "import cycle",
    Kind.IN_FUNCTION: "import cycle hidden in a function",
    Kind.FOR_TYPES: "import cycle among imports for types only",
}


@dataclass(frozen=True, slots=True)
class Edge:
    """One module importing another."""

    importer: str
    imported: str
    kind: Kind
    file: str
    line: int


def import_cycles(sources: Iterable[Source]) -> Iterator[Finding]:
    """Yield the shortest cycle of each group of modules, by the kind of import that is needed to close it."""
    sources = list(sources)
    modules = frozenset(source.module for source in sources)
    edges = [edge for source in sources for edge in imports_of(source, modules)]
    for kind in Kind:
        admitted = [edge for edge in edges if edge.kind <= kind]
        yield from (describe(cycle, kind) for cycle in shortest_cycles(admitted, kind))


def imports_of(source: Source, modules: frozenset[str]) -> Iterator[Edge]:
    for node, kind in imports_with_kind(source.tree, Kind.PLAIN):
        for target in targets_of(node, source, modules):
            if target != source.module:
                yield Edge(source.module, target, kind, source.file, node.lineno)


def imports_with_kind(node: ast.AST, kind: Kind) -> Iterator[tuple[ast.Import | ast.ImportFrom, Kind]]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, kind
    elif isinstance(node, ast.If) and is_type_checking(node.test):
        yield from each_with_kind(node.body, Kind.FOR_TYPES)
        yield from each_with_kind(node.orelse, kind)
    else:
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        inner = max(kind, Kind.IN_FUNCTION) if is_function else kind
        yield from each_with_kind(ast.iter_child_nodes(node), inner)


def each_with_kind(nodes: Iterable[ast.AST], kind: Kind) -> Iterator[tuple[ast.Import | ast.ImportFrom, Kind]]:
    for node in nodes:
        yield from imports_with_kind(node, kind)


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def targets_of(node: ast.Import | ast.ImportFrom, source: Source, modules: frozenset[str]) -> set[str]:
    """The modules of ours that an import names. That packages run along with their modules is no edge."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & modules
    base = absolute(node, source)
    named = {f"{base}.{alias.name}" for alias in node.names}
    only_submodules = named <= modules
    return (named & modules) | (set() if only_submodules else {base} & modules)


def absolute(node: ast.ImportFrom, source: Source) -> str:
    if not node.level:
        return node.module or ""
    parts = source.package.split(".")
    parts = parts[: len(parts) - (node.level - 1)]
    return ".".join([*parts, node.module] if node.module else parts)


def shortest_cycles(edges: list[Edge], kind: Kind) -> Iterator[list[Edge]]:
    """For each knot of modules: the shortest way round that uses an import of this kind."""
    knots: dict[frozenset[str], list[Edge]] = {}
    onward = by_importer(edges)
    reach = {module: reachable(module, onward) for module in onward}
    for edge in edges:
        if edge.kind is not kind or edge.importer not in reach.get(edge.imported, ()):
            continue
        knot = frozenset(m for m in reach[edge.importer] if edge.importer in reach.get(m, ()))
        cycle = [edge, *way(edge.imported, edge.importer, onward)]
        if knot not in knots or len(cycle) < len(knots[knot]):
            knots[knot] = cycle
    yield from knots.values()


def by_importer(edges: Iterable[Edge]) -> dict[str, list[Edge]]:
    onward: dict[str, list[Edge]] = {}
    for edge in edges:
        onward.setdefault(edge.importer, []).append(edge)
    return onward


def reachable(start: str, onward: Mapping[str, list[Edge]]) -> frozenset[str]:
    """All modules that importing `start` may bring in, itself only if it is in a cycle."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = {edge.imported for edge in onward.get(waiting.pop(), ())} - found
        found |= new
        waiting.extend(new)
    return frozenset(found)


def way(start: str, goal: str, onward: Mapping[str, list[Edge]]) -> list[Edge]:
    """The shortest chain of imports from start to goal, which is known to exist."""
    arrived: dict[str, list[Edge]] = {start: []}
    waiting = deque([start])
    while goal not in arrived:
        module = waiting.popleft()
        for edge in onward.get(module, ()):
            if edge.imported not in arrived:
                arrived[edge.imported] = [*arrived[module], edge]
                waiting.append(edge.imported)
    return arrived[goal]


def describe(cycle: list[Edge], kind: Kind) -> Finding:
    names = " -> ".join([cycle[0].importer, *(edge.imported for edge in cycle)])
    return Finding(cycle[0].file, cycle[0].line, f"{CYCLE[kind]}: {names}")
