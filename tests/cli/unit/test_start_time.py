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


def test_the_collector_looks_rarely_for_garbage_among_what_is_imported() -> None:
    """A fifth of control's start went there: hundreds of looks, a dozen of them at everything."""
    program = """
import gc
import sys
from corral.cli.main import main

before = [kind["collections"] for kind in gc.get_stats()]
sys.argv = ["corral", "control", "--help"]
try:
    main()
finally:
    import corral.processes.control

    looks = [after["collections"] - earlier for after, earlier in zip(gc.get_stats(), before)]
    sys.stderr.write(f"{sum(looks)} {looks[2]}")
"""
    finished = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    looks, whole = map(int, finished.stderr.split())
    assert 0 < looks < 50
    assert whole == 0
