"""Migrations are one chain: no two have the same number or follow the same one, or no database could be opened."""

import ast
from collections.abc import Iterable, Iterator

from .sources import Finding, Source

FOLDER = "src/corral/frontend/store/migrations/versions/r"


def migrations_are_one_chain(sources: Iterable[Source]) -> Iterator[Finding]:
    taken: dict[tuple[str, object], str] = {}
    for source in sorted(sources, key=lambda one: one.file):
        if not source.file.startswith(FOLDER):
            continue
        for name, node in constants_of(source):
            first = taken.setdefault((name, node.value), source.file)
            if first != source.file:
                message = f"{name} is {node.value!r}, as in {first}; give it the next free number, and let it follow it"
                yield source.finding(node, message)


def constants_of(source: Source) -> Iterator[tuple[str, ast.Constant]]:
    """`revision` and `down_revision` of a migration."""
    for node in source.tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            yield from ((name, node.value) for name in names if name in ("revision", "down_revision"))
