"""Measurements that anyone can repeat: `make bench`. Everything runs on loopback, bounded in number and in time.

Nothing in `src/` imports this package; it may import all of `src/`, the testing kit included.
"""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
"""The checkout, from which the processes of the benches are started."""
