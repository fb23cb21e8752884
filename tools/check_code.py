"""Checks that no off-the-shelf linter makes: our rules about imports, tasks, purity, environment, sleeps and excepts.

Reads sources, never imports them. Prints `file:line: message` for each finding and exits with 1 if there are any.
One function per rule; every rule takes a parsed file (or all of them) and yields findings.

    python tools/check_code.py [ROOT]
"""

from __future__ import annotations

import ast
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TypeGuard

PRODUCT = "src/corral"
MAY_CREATE_TASKS = ("src/corral/base/tasks.py",)
MAY_READ_ENVIRONMENT = ("src/corral/app/settings.py", "src/corral/testing/")
PURE = "src/corral/domain/"
GENERATED = ("src/corral/rpc/_generated/",)

TASK_MAKERS = frozenset(
    {"corral.base.tasks.start_task", "asyncio.create_task", "asyncio.ensure_future", "asyncio.run_coroutine_threadsafe"}
)
MAY_BE_CALLED_ANYWHERE = frozenset({"start_task", "run_coroutine_threadsafe"})
TASK_METHODS = frozenset({"create_task", "ensure_future", "run_coroutine_threadsafe"})
TASK_GROUP = "asyncio.TaskGroup"
TASK_GROUPS = frozenset({TASK_GROUP, "corral.base.tasks.task_group"})
IMPURE_MODULES = frozenset({"asyncio", "logging", "os", "random", "secrets", "socket", "time"})
CLOCK_READS = frozenset(
    {"datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"}
)
ENVIRONMENT = frozenset({"os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv"})
BROAD = frozenset({"Exception", "BaseException", "builtins.Exception", "builtins.BaseException"})


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One violation, where it is and what is wrong."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


@dataclass(frozen=True, slots=True)
class Source:
    """One parsed file; `file` is relative to the checkout."""

    file: str
    tree: ast.Module

    @property
    def module(self) -> str:
        parts = Path(self.file).with_suffix("").parts
        parts = parts[1:] if parts[0] == "src" else parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def package(self) -> str:
        """What a relative import starts from."""
        return self.module if Path(self.file).name == "__init__.py" else self.module.rpartition(".")[0]

    def finding(self, node: ast.stmt | ast.expr | ast.excepthandler, message: str) -> Finding:
        return Finding(self.file, node.lineno, message)


# Names: what a dotted expression means once the file's imports are taken into account.


class Names:
    """Resolves `sleep` to `time.sleep` and `aio.sleep` to `asyncio.sleep`, by the imports found anywhere in a file."""

    def __init__(self, tree: ast.Module) -> None:
        self._known: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._known |= {a.asname: a.name for a in node.names if a.asname}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self._known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}

    def full(self, node: ast.expr | None) -> str:
        """The dotted name, or nothing for any other expression."""
        if isinstance(node, ast.Name):
            return self._known.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            owner = self.full(node.value)
            return f"{owner}.{node.attr}" if owner else ""
        return ""


# Import cycles.


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
    """The shortest cycle of each knot, told apart by the least binding import that it takes to close it."""
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


# Tasks.


def tasks_have_owners(source: Source) -> Iterator[Finding]:
    """No task is dropped, and only `base/tasks.py` and task groups create any."""
    names = Names(source.tree)
    groups = task_groups(source.tree, names)
    dropped = set(dropped_calls(source.tree))
    for call in calls(source.tree):
        name = task_maker(call, names)
        if not name or is_of_group(call, groups):
            continue
        if call in dropped:
            yield source.finding(call, f"the result of {name} is dropped: nobody would notice how it ends")
        elif name not in MAY_BE_CALLED_ANYWHERE and not source.file.startswith(MAY_CREATE_TASKS):
            yield source.finding(call, f"{name} outside base/tasks.py: use run_services, a TaskGroup, or start_task")


def task_maker(call: ast.Call, names: Names) -> str:
    """`create_task` and its like, as a function of asyncio's or a method of a loop or group; else nothing."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in TASK_METHODS:
        return call.func.attr
    full = names.full(call.func)
    return full.rpartition(".")[2] if full in TASK_MAKERS else ""


def is_of_group(call: ast.Call, groups: frozenset[str]) -> bool:
    return isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in groups


def task_groups(tree: ast.Module, names: Names) -> frozenset[str]:
    """Names bound by `async with asyncio.TaskGroup() as …`, or handed in as a parameter of that type."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncWith):
            found.update(bound_name(item) for item in node.items if opens_group(item, names))
        elif isinstance(node, ast.arg) and names.full(node.annotation) == TASK_GROUP:
            found.add(node.arg)
    return frozenset(found)


def opens_group(item: ast.withitem, names: Names) -> bool:
    opened = item.context_expr
    return isinstance(opened, ast.Call) and names.full(opened.func) in TASK_GROUPS


def bound_name(item: ast.withitem) -> str:
    return ast.unparse(item.optional_vars) if item.optional_vars else ""


def dropped_calls(tree: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if is_dropping(node) and isinstance(node.value, ast.Call):
            yield node.value


def is_dropping(node: ast.AST) -> TypeGuard[ast.Expr | ast.Assign]:
    """A statement that leaves no name behind, unless it is `_`."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Name) and target.id == "_" for target in node.targets)
    return isinstance(node, ast.Expr)


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


# Purity, environment, sleeps.


def domain_is_pure(source: Source) -> Iterator[Finding]:
    """The domain decides; it neither waits, nor looks at a clock, nor tells anyone."""
    names = Names(source.tree)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await):
            yield source.finding(node, "async in the domain: it must be pure")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for module in sorted(imported_tops(node) & IMPURE_MODULES):
                yield source.finding(node, f"import of {module} in the domain: it must be pure")
        elif isinstance(node, ast.Attribute) and names.full(node) in CLOCK_READS:
            yield source.finding(node, f"{names.full(node)} in the domain: pass `now` in")


def imported_tops(node: ast.Import | ast.ImportFrom) -> set[str]:
    """The outermost packages an absolute import names."""
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    return {(node.module or "").partition(".")[0]} if not node.level else set()


def environment_is_read_in_settings(source: Source) -> Iterator[Finding]:
    names = Names(source.tree)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute | ast.Name) and names.full(node) in ENVIRONMENT:
            yield source.finding(node, f"{names.full(node)} outside app/settings.py: pass the value in")


def tests_do_not_sleep(source: Source) -> Iterator[Finding]:
    """Tests wait on events and gates. `asyncio.sleep(0)`, which lets others run, is no waiting."""
    names = Names(source.tree)
    for call in calls(source.tree):
        name = names.full(call.func)
        if name == "time.sleep" or (name == "asyncio.sleep" and any(map(is_constant_wait, durations(call)))):
            yield source.finding(call, f"{name} in a test: wait on an event or a gate")


def durations(call: ast.Call) -> list[ast.expr]:
    return call.args[:1] or [keyword.value for keyword in call.keywords if keyword.arg == "delay"]


def is_constant_wait(duration: ast.expr) -> bool:
    parts = list(ast.walk(duration))
    if any(isinstance(part, ast.Name | ast.Attribute | ast.Call) for part in parts):
        return False
    return any(isinstance(part, ast.Constant) and part.value not in (0, None) for part in parts)


# Broad excepts.


def broad_excepts_speak(source: Source) -> Iterator[Finding]:
    """Who catches everything must raise again or log the traceback."""
    names = Names(source.tree)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler) and is_broad(node.type, names) and not speaks(node):
            yield source.finding(node, "a broad except that neither raises nor logs the exception")
        elif isinstance(node, ast.Call) and suppresses_all(node, names):
            yield source.finding(node, "suppress of every exception: name those that are expected")


def suppresses_all(call: ast.Call, names: Names) -> bool:
    return names.full(call.func) == "contextlib.suppress" and any(is_broad(one, names) for one in call.args)


def is_broad(caught: ast.expr | None, names: Names) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(is_broad(one, names) for one in caught.elts)
    return caught is None or names.full(caught) in BROAD


def speaks(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) or logs_traceback(node) for node in own_nodes(handler.body))


def logs_traceback(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr == "exception" or any(keyword.arg == "exc_info" for keyword in node.keywords)


def own_nodes(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Everything below, but not what stands in a function defined there: that runs later or never."""
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from own_nodes(ast.iter_child_nodes(node))


# Which rule holds where.

Rule = Callable[[Source], Iterator[Finding]]


def rules_for(file: str) -> Iterator[Rule]:
    if file.startswith("tests/"):
        yield tests_do_not_sleep
        return
    yield tasks_have_owners
    yield broad_excepts_speak
    if file.startswith(PURE):
        yield domain_is_pure
    if not file.startswith(MAY_READ_ENVIRONMENT):
        yield environment_is_read_in_settings


def check(sources: Iterable[Source]) -> list[Finding]:
    sources = list(sources)
    findings = [finding for source in sources for rule in rules_for(source.file) for finding in rule(source)]
    findings += import_cycles(source for source in sources if source.file.startswith(PRODUCT))
    return sorted(set(findings))


def read_sources(root: Path) -> Iterator[Source]:
    for folder in (PRODUCT, "tests"):
        for path in sorted((root / folder).rglob("*.py")):
            file = path.relative_to(root).as_posix()
            if not file.startswith(GENERATED):
                yield Source(file, ast.parse(path.read_text(encoding="utf-8"), filename=file))


def main(words: list[str]) -> int:
    root = Path(words[0]) if words else Path(__file__).resolve().parent.parent
    findings = check(read_sources(root))
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
