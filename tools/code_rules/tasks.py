"""Every task has an owner."""

import ast
from collections.abc import Iterator
from typing import TypeGuard

from .sources import Finding, Names, Source, calls

MAY_CREATE_TASKS = (
    "src/corral/base/tasks.py",
    "src/corral/rpc/grpc_client/",  # imports nothing of ours, and so not `start_task`
)
TASK_MAKERS = frozenset(
    {"corral.base.tasks.start_task", "asyncio.create_task", "asyncio.ensure_future", "asyncio.run_coroutine_threadsafe"}
)
MAY_BE_CALLED_ANYWHERE = frozenset({"start_task", "run_coroutine_threadsafe"})
TASK_METHODS = frozenset({"create_task", "ensure_future", "run_coroutine_threadsafe"})
TASK_GROUP = "asyncio.TaskGroup"
TASK_GROUPS = frozenset({TASK_GROUP, "corral.base.tasks.task_group"})


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
