"""The messages of the contract with backends, by the names that proto/backend.proto gives them. No gRPC in here."""

from corral.rpc._generated.backend_pb2 import (
    ChatDelta,
    EmbeddingResult,
    HealthMessage,
    MemoryUsageData,
    Message,
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
    "EmbeddingResult",
    "HealthMessage",
    "MemoryUsageData",
    "Message",
    "ModelOptions",
    "PredictOptions",
    "Reply",
    "Result",
    "StatusResponse",
    "TokenizationResponse",
    "ToolCallDelta",
]
