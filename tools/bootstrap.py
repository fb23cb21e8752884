"""The way in, so plain that an old Python can read it and say that it is too old. The work is in environment/."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - whoever starts this may have any Python
    has = "%d.%d" % sys.version_info[:2]  # noqa: UP031
    sys.exit("Corral needs Python 3.11 or newer; this is " + has + ". Name a newer one, as in: make PYTHON=python3.12")

from environment import command

sys.exit(command.main(sys.argv[1:]))
