"""Prints progress to standard error, apart from the figures."""

import sys


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
