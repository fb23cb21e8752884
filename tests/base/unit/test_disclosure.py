"""What a process shows to others of its user: looked at from real processes, as the kernel shows it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.base.disclosure import basic_environment
from tests.kit.inspection import as_neighbour, environment_text, seen_by_neighbour

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
HIDDEN = {"SECRET_ONE": "first-word", "EMPTY": "", "SECRET_TWO": "a=b=c"}
SHOWN = {"PATH": os.defpath, "SECRET": "of no interest", "LAST": "seen"}
HIDE = """
import os, sys
from corral.base.disclosure import blot_out, refuse_inspection
names = sys.argv[1].split(",")
for name in names:
    del os.environ[name]
blot_out(names)
if sys.argv[2] == "refuse":
    refuse_inspection()
print("ready", flush=True)
sys.stdin.readline()
print(os.popen("env").read())
"""


@contextmanager
def hiding(names: str, *, refuses: bool) -> Iterator[subprocess.Popen[str]]:
    """A process that was started with secrets in its environment, and has hidden some."""
    argv = as_neighbour(sys.executable, "-c", HIDE, names, "refuse" if refuses else "show")
    env = {**SHOWN, **HIDDEN}
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def test_values_are_gone_from_where_the_kernel_shows_them() -> None:
    with hiding("SECRET_ONE,SECRET_TWO,EMPTY", refuses=False) as process:
        shown = environment_text(process.pid)
        assert "first-word" not in shown
        assert "a=b=c" not in shown
        variables = dict(entry.split("=", 1) for entry in shown.split("\0") if entry)
        assert {name: variables[name] for name in SHOWN} == SHOWN
        assert variables["SECRET_TWO"] == "*****"


def test_children_do_not_inherit_them() -> None:
    with hiding("SECRET_ONE,SECRET_TWO", refuses=False) as process:
        inherited, _ = process.communicate("\n", timeout=30)
    assert "LAST=seen" in inherited
    assert "SECRET_ONE" not in inherited
    assert "SECRET_TWO" not in inherited


def test_a_neighbour_sees_everything_of_an_ordinary_process() -> None:
    """So that the next test shows something."""
    with hiding("SECRET_ONE", refuses=False) as process:
        assert set(seen_by_neighbour(process.pid).values()) == {"open"}


def test_a_neighbour_sees_nothing_of_a_process_that_refuses() -> None:
    with hiding("SECRET_ONE", refuses=True) as process:
        seen = seen_by_neighbour(process.pid)
    assert seen == {"environ": "EACCES", "memory": "EACCES", "descriptors": "EACCES", "tracing": "EPERM"}


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_an_environment_by_list_has_nothing_that_is_not_listed(environment: dict[str, str]) -> None:
    kept = basic_environment({**environment, "PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "x", "CORRAL_DATABASE": "y"})
    assert kept["PATH"] == "/bin"
    assert kept.keys().isdisjoint({"AWS_SECRET_ACCESS_KEY", "CORRAL_DATABASE"})
