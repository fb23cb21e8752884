"""How often a process looks for garbage that only cycles keep alive."""

import gc
from typing import Final

_ALLOCATIONS: Final = 20_000


def look_for_garbage_rarely() -> None:
    """For processes that run for long: what is there at the start lasts, and what is made later leaves few cycles
    behind. With the usual settings a thousand requests at once are looked through again and again, for nothing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, 20, 20)
