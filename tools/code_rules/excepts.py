"""Rule: a broad `except` must raise again or log the traceback."""

import ast
from collections.abc import Iterable, Iterator

from .sources import Finding, Names, Source

BROAD = frozenset({"Exception", "BaseException", "builtins.Exception", "builtins.BaseException"})


def broad_excepts_speak(source: Source) -> Iterator[Finding]:
    """Find a broad `except` that neither raises nor logs the traceback."""
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
