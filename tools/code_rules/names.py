"""A class name exists once, so that a search for it finds one class."""

import ast
from collections.abc import Iterable, Iterator

from .sources import Finding, Source


def class_names_are_unique(sources: Iterable[Source]) -> Iterator[Finding]:
    """Yield each class whose name another class of these sources has already, private ones and inner ones too."""
    first: dict[str, str] = {}
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and (file := first.setdefault(node.name, source.file)) != source.file:
                yield source.finding(node, f"the class name {node.name} exists already, in {file}")
