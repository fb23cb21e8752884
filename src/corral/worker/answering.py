"""Wraps a function that answers a request into a bus handler that always replies.

A caller without a reply waits for minutes, so every path ends with one.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from corral.base.errors import CorralError, InvalidInput, MessageTooLarge
from corral.bus.port import Handler, Message
from corral.wire import go_json

log = logging.getLogger(__name__)

NOT_ENCODED: Final = b'{"error":"internal marshal error"}'
"""What LocalAI's workers say then."""
_UNEXPECTED: Final = "internal error; see the worker's log"
_TOO_LARGE: Final = "the answer is too large for NATS"

MessageHandler = Callable[[Message], Awaitable[msgspec.Struct]]
Failed = Callable[[str], msgspec.Struct]
"""The answer that says what went wrong."""


def unreadable_with_reason(error: InvalidInput) -> str:
    return f"invalid request: {error}"


def unreadable(_: InvalidInput) -> str:
    """Some of LocalAI's handlers say no more."""
    return "invalid request"


def replying(
    answer: MessageHandler, failed: Failed, *, refusal: Callable[[InvalidInput], str] = unreadable_with_reason
) -> Handler:
    """A handler that answers with what `answer` gives, or with the reason why it gives nothing."""

    async def handle(message: Message) -> None:
        try:
            await message.respond(_encoded(await _outcome(answer, failed, refusal, message)))
        except MessageTooLarge as error:
            log.warning("%s: %s", message.subject, error, extra={"event": "command.answer_too_large"})
            await message.respond(_encoded(failed(_TOO_LARGE)))

    return handle


async def _outcome(
    answer: MessageHandler, failed: Failed, refusal: Callable[[InvalidInput], str], message: Message
) -> msgspec.Struct:
    try:
        return await answer(message)
    except InvalidInput as error:
        return failed(refusal(error))
    except CorralError as error:
        log.warning("%s: %s", message.subject, error, extra={"event": "command.failed"})
        return failed(error.message)
    except OSError as error:
        log.warning("%s: %s", message.subject, error, extra={"event": "command.failed"})
        return failed(f"{error.filename or 'disk'}: {error.strerror or error}")
    except Exception:
        log.exception("command failed", extra={"event": "command.failed", "subject": message.subject})
        return failed(_UNEXPECTED)


def _encoded(reply: msgspec.Struct) -> bytes:
    try:
        return go_json.encode(reply)
    except (TypeError, ValueError):
        log.exception("a reply cannot be encoded", extra={"event": "command.not_encoded"})
        return NOT_ENCODED
