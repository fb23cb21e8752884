"""What a backend in Python needs: derive from `Backend`, then `serve` it.

    class Parrot(Backend):
        name = "parrot"

        async def predict(self, request: PredictOptions) -> Reply:
            return Reply(message=request.Prompt.encode())

    serve(Parrot)

The SDK knows the contract (see `server`); the backend knows its model. Imports nothing of Corral, so that a backend's
directory, together with a copy of this package, runs under a LocalAI worker as well.
"""

from corral_backend_sdk.backend import (
    Backend,
    Launch,
    LoadFailed,
    NotOffered,
    PortTaken,
    RequestRefused,
    option_values,
)
from corral_backend_sdk.messages import (
    ChatDelta,
    DetokenizeRequest,
    DetokenizeResponse,
    DocumentResult,
    EmbeddingLayout,
    EmbeddingResult,
    ModelMetadataResponse,
    ModelOptions,
    PredictOptions,
    Reply,
    RerankRequest,
    RerankResult,
    Result,
    TokenizationResponse,
    ToolCallDelta,
    TranscriptRequest,
    TranscriptResult,
    TranscriptSegment,
    TranscriptStreamResponse,
    TranscriptWord,
    TTSRequest,
    Usage,
    VADRequest,
    VADResponse,
    VADSegment,
)
from corral_backend_sdk.process import serve

__all__ = [
    "Backend",
    "ChatDelta",
    "DetokenizeRequest",
    "DetokenizeResponse",
    "DocumentResult",
    "EmbeddingLayout",
    "EmbeddingResult",
    "Launch",
    "LoadFailed",
    "ModelMetadataResponse",
    "ModelOptions",
    "NotOffered",
    "PortTaken",
    "PredictOptions",
    "Reply",
    "RequestRefused",
    "RerankRequest",
    "RerankResult",
    "Result",
    "TTSRequest",
    "TokenizationResponse",
    "ToolCallDelta",
    "TranscriptRequest",
    "TranscriptResult",
    "TranscriptSegment",
    "TranscriptStreamResponse",
    "TranscriptWord",
    "Usage",
    "VADRequest",
    "VADResponse",
    "VADSegment",
    "option_values",
    "serve",
]
