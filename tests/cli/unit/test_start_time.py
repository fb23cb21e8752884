"""Commands start fast because they import little: what is heavy is imported where it is used."""

import subprocess
import sys

import pytest

HEAVY = ("aiohttp", "alembic", "asyncio", "msgspec", "nats", "rich", "sqlalchemy", "starlette", "uvicorn", "uvloop")


def imported_by(*arguments: str) -> set[str]:
    program = f"""
import sys
from corral.cli.main import run
code = run({list(arguments)!r})
sys.stderr.write(",".join(name for name in {HEAVY!r} if name in sys.modules))
raise SystemExit(code)
"""
    finished = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    return set(filter(None, finished.stderr.split(",")))


@pytest.mark.parametrize("arguments", [["version"], ["--version"], ["completion", "bash"]])
def test_nothing_heavy_is_imported_for(arguments: list[str]) -> None:
    assert imported_by(*arguments) == set()


def test_help_of_all_commands_stays_light() -> None:
    assert imported_by("--help") <= {"msgspec"}
