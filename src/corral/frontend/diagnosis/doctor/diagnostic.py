"""The form of a diagnostic: a name and one question to the running frontend."""

from collections.abc import Awaitable, Callable
from typing import Final

from corral.frontend.api.context import AdminContext
from corral.wire.nodes import Finding

Diagnostic = Callable[[AdminContext], Awaitable[Finding]]

OK: Final = "ok"
WARNING: Final = "warning"
PROBLEM: Final = "problem"
