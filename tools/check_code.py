"""Checks our own rules. Prints `file:line: message` for each finding and exits with 1 if there are any.

    python tools/check_code.py [ROOT]

The rules are in code_rules/.
"""

import gc
import sys

from code_rules import check

if __name__ == "__main__":
    gc.disable()  # All syntax trees stay until the end: looking for garbage among them takes half of the time.
    sys.exit(check.main(sys.argv[1:]))
