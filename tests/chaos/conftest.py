"""The faults of `chaos/` in small doses; that package lies beside `src`, so it is found through the root."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))
