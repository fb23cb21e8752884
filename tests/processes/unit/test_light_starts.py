"""What processes must not import at their start: it would cost time and memory in each of them, for nothing."""

import subprocess
import sys

import pytest


def imported(module: str, *names: str) -> list[str]:
    """Which of these modules are there after an import of `module`."""
    program = f"import sys, {module}; print(*[name for name in {names!r} if name in sys.modules])"
    finished = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    return finished.stdout.split()


@pytest.mark.parametrize("module", ["corral.processes.control", "corral.processes.maintenance"])
def test_a_database_of_this_version_needs_no_library_of_migrations(module: str) -> None:
    assert imported(module, "alembic", "mako", "pygments") == []


def test_a_worker_imports_no_settings_of_other_processes() -> None:
    program = """
import sys
from corral.processes.configs import images_config, worker_config
from corral.processes.settings import WORKER_NEEDS, gather, hide_secrets, section
from corral.processes.settings_sources import resolve
sources = gather({}, {"CORRAL_REGISTER_TO": "http://127.0.0.1:1"})
worker_config(resolve(section("worker"), sources), sources.environment, resolve(section("gallery"), sources))
images_config(sources)
hide_secrets(WORKER_NEEDS)
import corral.processes.worker
print(*[name for name in sys.modules if name.startswith(("corral.frontend", "corral.gateway", "corral.hubs.config"))])
"""
    finished = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.split() == []
