"""What a subject may look like, and which subjects a pattern covers. What the subjects mean is the protocol's."""

from corral.base.errors import InvalidInput

_FORBIDDEN = frozenset(" \t\r\n\f\0")


def check_subject(subject: str) -> None:
    """InvalidInput unless a message can be sent there."""
    _check_tokens(subject)
    if any(token in ("*", ">") for token in subject.split(".")):
        raise InvalidInput("subject", f"{subject!r} has a wildcard; messages go to one subject")


def check_pattern(pattern: str) -> None:
    """InvalidInput unless one can subscribe to it."""
    _check_tokens(pattern)
    if ">" in pattern.split(".")[:-1]:
        raise InvalidInput("subject", f"{pattern!r} has a > that is not at its end")


def check_queue(queue: str) -> None:
    """InvalidInput unless it can name a queue group; the empty name means none."""
    if _FORBIDDEN & set(queue):
        raise InvalidInput("queue", f"{queue!r} has white space")


def _check_tokens(subject: str) -> None:
    if not subject or not all(subject.split(".")):
        raise InvalidInput("subject", f"{subject!r} is empty or has an empty part")
    if _FORBIDDEN & set(subject):
        raise InvalidInput("subject", f"{subject!r} has white space")


def covers(pattern: str, subject: str) -> bool:
    """Whether a subscription to the pattern gets messages for the subject."""
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(given) <= len(wanted):
            return False
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(want in ("*", got) for want, got in zip(wanted, given, strict=True))
