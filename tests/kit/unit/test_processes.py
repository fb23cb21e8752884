"""Looks at processes that end meanwhile."""

import os
import subprocess
import sys

import psutil

from tests.kit.processes import running_below, words_of

WORD = "a-word-of-its-own"


def test_what_has_ended_is_not_there_and_no_error() -> None:
    words = [sys.executable, "-S", "-c", "input(print(flush=True))", WORD]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # before its first word the kernel may not know its command line
        process = psutil.Process(child.pid)
        assert [one.pid for one in running_below(os.getpid(), WORD)] == [child.pid]
        child.communicate(b"\n")
    assert words_of(process) == []
    assert running_below(os.getpid(), WORD) == []
