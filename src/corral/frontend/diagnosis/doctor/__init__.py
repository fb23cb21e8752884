"""The frontend's own diagnostics, by subject: what is wrong, and what to do about it."""

from typing import Final

OK: Final = "ok"
WARNING: Final = "warning"
PROBLEM: Final = "problem"
