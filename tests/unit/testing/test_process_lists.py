"""Looks at processes that end meanwhile."""

import os
import subprocess
import sys

import psutil

from corral.testing.process_lists import running_below, words_of

WORD = "a-word-of-its-own"


def test_what_has_ended_is_not_there_and_no_error() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()", WORD], stdin=subprocess.PIPE) as child:
        process = psutil.Process(child.pid)
        assert [one.pid for one in running_below(os.getpid(), WORD)] == [child.pid]
        child.communicate(b"\n")
    assert words_of(process) == []
    assert running_below(os.getpid(), WORD) == []
