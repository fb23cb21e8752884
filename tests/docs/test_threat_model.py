"""The page of the threat model: every holder, every subject, and tests that exist for each."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "concepts" / "threat-model.md"
HOLDERS = (
    "Stranger",
    "Inference key",
    "Viewer",
    "Operator",
    "Session cookie",
    "Page of another site",
    "Join code",
    "Node key",
    "Pending worker",
    "Worker",
    "Backend",
    "Gateway",
    "Frontend's host",
    "Database",
)
SUBJECTS = ["API", "Prompts", "Nodes", "Secrets", "Machines", "End"]
ROW = re.compile(r"^\| (\w+) \| (.+) \| (.+) \|$", re.MULTILINE)


def section(holder: str) -> str:
    text = PAGE.read_text(encoding="utf-8")
    return text.partition(f"\n## {holder}\n")[2].partition("\n## ")[0]


@functools.cache
def names_in(file: Path) -> frozenset[str]:
    """Functions as `name`, methods as `Class::name`."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    names = {node.name for node in tree.body if isinstance(node, functions)}
    for group in tree.body:
        if isinstance(group, ast.ClassDef):
            names |= {f"{group.name}::{node.name}" for node in group.body if isinstance(node, functions)}
    return frozenset(names)


@pytest.mark.parametrize("holder", HOLDERS)
def test_every_cell_of_a_holder_says_what_and_names_tests_that_exist(holder: str) -> None:
    rows = [row for row in ROW.findall(section(holder)) if row[0] in SUBJECTS]
    assert [subject for subject, _, _ in rows] == SUBJECTS
    for subject, _, shown in rows:
        names = re.findall(r"`([^`]+)`", shown)
        assert names, f"{holder}, {subject}: no test"
        for name in names:
            file, _, test = name.partition("::")
            assert (ROOT / "tests" / file).is_file(), f"{holder}, {subject}: there is no {file}"
            assert test in names_in(ROOT / "tests" / file), f"{holder}, {subject}: there is no {name}"


def test_the_page_has_no_other_holders() -> None:
    headings = re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == ["What is trusted, and what is not shown", *HOLDERS]
