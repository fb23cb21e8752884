"""The routes of inference, and which use of a model each of them asks for. Every process goes by this list."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final


class ModelUse(StrEnum):
    """One kind of work that models do."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SPEECH = "speech"
    TRANSCRIPTION = "transcription"
    VOICE_ACTIVITY = "vad"


_U = ModelUse
MESSAGES: Final = "/v1/messages"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"
RESPONSES: Final = "/v1/responses"
ROUTE_USES: Final[Mapping[str, ModelUse | None]] = {
    "/v1/chat/completions": _U.CHAT,
    "/v1/completions": _U.COMPLETION,
    "/v1/embeddings": _U.EMBEDDINGS,
    "/v1/audio/speech": _U.SPEECH,
    "/v1/audio/transcriptions": _U.TRANSCRIPTION,
    "/v1/rerank": _U.RERANK,
    "/v1/vad": _U.VOICE_ACTIVITY,
    "/tokenize": None,
    "/detokenize": None,
    RESPONSES: _U.CHAT,
    MESSAGES: _U.CHAT,
    COUNT_TOKENS: _U.CHAT,
}
"""All routes of inference as replicas know them, and which use of a model each asks for; None suits any model."""
ADAPTED_ROUTES: Final = frozenset(ROUTE_USES) - {RESPONSES, MESSAGES, COUNT_TOKENS}
"""What adapters answer for backends that only speak gRPC. Also assumed of replicas that do not say what they answer:
workers and backends that are older than the question."""


def known_routes(told: Iterable[str]) -> frozenset[str]:
    """Those of the given routes that are routes of inference."""
    return frozenset(told) & ROUTE_USES.keys()
