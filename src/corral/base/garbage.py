"""Settings of Python's cyclic garbage collector for long-lived processes."""

import gc
from typing import Final

_ALLOCATIONS: Final = 20_000


def look_for_garbage_rarely() -> None:
    """Collect rarely: objects from start-up stay for ever, and later work leaves few cycles behind.

    With the default settings, a thousand concurrent requests would be traversed again and again for nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, 20, 20)
