"""The program that a child of `base/processes.py` runs before it becomes the wanted one. Linux only.

It ties the child to its parent's life, reads its environment from a descriptor, and gives up rights as the parent asks.
It runs without the package and without site-packages, so it imports nothing but the standard library, and little of it:
every child waits for this.
"""

import _signal  # type: ignore[import-not-found]  # importing `signal` takes as long as all of this
import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1
_PARENT_IS_GONE = 125
_NOT_EXECUTABLE = 127


def main() -> None:
    """Expect the parent's number, two descriptors (-1: not confined), the path of the program, and its arguments."""
    parent, environment, confinement = map(int, sys.argv[1:4])
    executable = sys.argv[4]
    _die_with(parent)
    # Python ignores these two, and ignored signals stay ignored across exec.
    for ignored in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(ignored, _signal.SIG_DFL)
    with open(environment, "rb") as file:
        pairs = [pair.split(b"=", 1) for pair in file.read().split(b"\0") if pair]
    if confinement >= 0:
        _confine(confinement)
        _die_with(parent)  # again, because another user id unties
    try:
        os.execve(executable, sys.argv[5:], {name: value for name, value in pairs})  # noqa: S606
    except OSError as error:
        os.write(2, f"cannot run {executable}: {error.strerror}\n".encode())
        os._exit(_NOT_EXECUTABLE)


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(_signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(_PARENT_IS_GONE)


def _confine(descriptor: int) -> None:
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    from confining import confine  # type: ignore[import-not-found]  # noqa: PLC0415 - beside this file

    with open(descriptor, "rb") as file:
        confine(file.read())


if __name__ == "__main__":
    main()
