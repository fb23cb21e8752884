"""The package could stand alone."""

import ast
import re
import sys
from pathlib import Path

import corral.rpc.grpc_client

FOLDER = Path(corral.rpc.grpc_client.__file__).parent
MAY_IMPORT = sys.stdlib_module_names | {"hpack"}


def imported(file: Path) -> set[str]:
    """Top-level packages that a file imports, without those of its own folder."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= 1, f"{file.name} imports from above its folder"
            names |= set() if node.level else {node.module or ""}
    return {name.partition(".")[0] for name in names}


def test_it_imports_the_standard_library_and_hpack_only() -> None:
    imports = {file.name: imported(file) for file in FOLDER.glob("*.py")}
    assert len(imports) > 5
    assert {name: packages - MAY_IMPORT for name, packages in imports.items() if packages - MAY_IMPORT} == {}


def test_it_says_nothing_about_the_product_around_it() -> None:
    words = re.compile(r"corral|backend|replica|localai", re.IGNORECASE)
    texts = {file.name: file.read_text() for file in FOLDER.iterdir() if file.is_file()}
    assert "README.md" in texts
    assert {name: words.findall(text) for name, text in texts.items() if words.search(text)} == {}
