"""The messages that most backends need; the others are in `_generated.backend_pb2`."""

from corral_backend_sdk._generated.backend_pb2 import (
    ChatDelta,
    EmbeddingLayout,
    EmbeddingResult,
    HealthMessage,
    MemoryUsageData,
    ModelOptions,
    PredictOptions,
    Reply,
    Result,
    StatusResponse,
    TokenizationResponse,
    ToolCallDelta,
)

__all__ = [
    "ChatDelta",
    "EmbeddingLayout",
    "EmbeddingResult",
    "HealthMessage",
    "MemoryUsageData",
    "ModelOptions",
    "PredictOptions",
    "Reply",
    "Result",
    "StatusResponse",
    "TokenizationResponse",
    "ToolCallDelta",
]
