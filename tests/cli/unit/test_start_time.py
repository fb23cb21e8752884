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


def test_the_collector_never_looks_for_garbage_among_what_control_imports() -> None:
    """With Python's own threshold there are hundreds of looks, some of them at everything."""
    program = """
import gc
import sys
from corral.cli.main import main

looks = []
gc.callbacks.append(lambda phase, about: looks.append(about["generation"]) if phase == "start" else None)
sys.argv = ["corral", "control", "--help"]
try:
    main()
finally:
    import corral.processes.control
    from corral.base.processes import look_for_garbage_rarely

    look_for_garbage_rarely()
    sys.stderr.write(f"{len(looks)} {gc.get_freeze_count() > 100_000} {gc.get_threshold()[0] < 100_000}")
"""
    finished = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert finished.stderr == "0 True True"
