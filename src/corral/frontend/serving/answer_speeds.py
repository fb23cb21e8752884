"""How fast replicas answer, as gateways report it. Only what was heard lately counts, and the newest most."""

from dataclasses import dataclass
from typing import Final

from corral.base.clock import Clock

_HALVED_AFTER: Final = 30.0
"""Seconds after which an answer counts half."""
_FORGOTTEN_AFTER: Final = 300.0
_MOST: Final = 20_000
"""Replicas; the longest silent go first."""


@dataclass(slots=True)
class _Answers:
    at: float
    tokens: float = 0.0
    seconds: float = 0.0


class AnswerSpeeds:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: dict[str, _Answers] = {}
        """By replica, the one that answered last at the end."""

    def add(self, replica: str, tokens: int, seconds: float) -> None:
        """Answers of a replica ended, with so many tokens after so many seconds, together."""
        if tokens <= 0 or seconds <= 0:
            return
        now = self._clock.monotonic()
        known = self._answers.pop(replica, None) or _Answers(now)
        share = 0.5 ** ((now - known.at) / _HALVED_AFTER)
        self._answers[replica] = _Answers(now, known.tokens * share + tokens, known.seconds * share + seconds)
        if len(self._answers) > _MOST:
            del self._answers[next(iter(self._answers))]

    def of(self, replica: str) -> float | None:
        """Tokens a second of one answer; None when there was none lately that told its tokens."""
        known = self._answers.get(replica)
        if known is None or self._clock.monotonic() - known.at > _FORGOTTEN_AFTER:
            return None
        return round(known.tokens / known.seconds, 1)
