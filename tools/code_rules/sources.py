"""Sources, parsed and never imported; what their names mean; and what is found wrong with them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PRODUCT = "src/corral"
GENERATED = ("src/corral/rpc/_generated/",)


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


def read_sources(root: Path) -> Iterator[Source]:
    for folder in (PRODUCT, "tests"):
        for path in sorted((root / folder).rglob("*.py")):
            file = path.relative_to(root).as_posix()
            if not file.startswith(GENERATED):
                yield Source(file, ast.parse(path.read_text(encoding="utf-8"), filename=file))


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))
