"""Who runs below a process. Processes end while one looks at them, so what cannot be read any more is left out."""

import contextlib

import psutil


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; empty once it has ended."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def running_below(pid: int, word: str) -> list[psutil.Process]:
    """Children, and theirs, that have this word on their command line."""
    return [one for one in psutil.Process(pid).children(recursive=True) if word in words_of(one)]
