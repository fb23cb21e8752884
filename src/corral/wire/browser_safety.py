"""Header fields that control and the gateways add to their own answers: people open some of them in a browser."""

from collections.abc import Mapping
from typing import Final

NO_FRAMES: Final = "frame-ancestors 'none'"
"""No page of another site may show this one inside itself and have people click on it unknowingly."""
SAFETY_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": NO_FRAMES,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
