"""What may not be done everywhere: to wait in a decision, to read the environment, to sleep in tests."""

import ast
from collections.abc import Iterator

from .sources import Finding, Names, Source, calls

IMPURE_MODULES = frozenset({"asyncio", "logging", "os", "random", "secrets", "socket", "time"})
CLOCK_READS = frozenset(
    {"datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"}
)
PURE_GALLERIES = """
    build_uris catalogue fit gallery model_artifacts
    model_catalogue model_check model_entries model_key_checks model_keys model_sizes model_variants places
"""
PURE = (
    "base",
    "wire",
    "templates",
    *(f"galleries.{noun}" for noun in PURE_GALLERIES.split()),
    "hubs.choose",
    "hubs.estimate",
    "hubs.plans",
    "hubs.references",
    "hubs.weight_shape",
)
ENVIRONMENT = frozenset({"os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv"})


def decisions_are_pure(source: Source) -> Iterator[Finding]:
    """Find decisions that wait, read a clock, log, or import what may do so."""
    names = Names(source.tree)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await):
            yield source.finding(node, "async in a decision: it must be pure")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for module in sorted(imported_tops(node) & IMPURE_MODULES):
                yield source.finding(node, f"import of {module} in a decision: it must be pure")
            for module in sorted(ours(node)):
                if not may_be_decided_with(module):
                    yield source.finding(node, f"import of {module} in a decision: it may import only what is pure")
        elif isinstance(node, ast.Attribute) and names.full(node) in CLOCK_READS:
            yield source.finding(node, f"{names.full(node)} in a decision: pass `now` in")


def ours(node: ast.Import | ast.ImportFrom) -> set[str]:
    """The modules of the product that an import names."""
    modules = {node.module or ""} if isinstance(node, ast.ImportFrom) else {alias.name for alias in node.names}
    return {module for module in modules if module.partition(".")[0] == "corral"}


def may_be_decided_with(module: str) -> bool:
    name = module.partition(".")[2]
    return "decide" in name.split(".") or any(f"{name}.".startswith(f"{pure}.") for pure in PURE)


def imported_tops(node: ast.Import | ast.ImportFrom) -> set[str]:
    """The outermost packages an absolute import names."""
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    return {(node.module or "").partition(".")[0]} if not node.level else set()


def environment_is_read_in_settings(source: Source) -> Iterator[Finding]:
    names = Names(source.tree)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute | ast.Name) and names.full(node) in ENVIRONMENT:
            yield source.finding(node, f"{names.full(node)} outside processes/settings.py: pass the value in")


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
