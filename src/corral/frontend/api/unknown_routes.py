"""What to say to clients that ask for a route which is not here but elsewhere: where to go instead, or that nobody does
it.
"""

from typing import Final

_ALL: Final = "/docs lists all"
_NOTHING_IS_KEPT: Final = "it is not offered, as nothing that clients send is kept here"
_HINTS: Final = {
    "/v1/v1/": "the client's base URL has /v1 already, and the client adds it once more",
    "/v1/api/": "the base URL of Ollama's clients is without /v1",
    "/ollama/": "the base URL of Ollama's clients is without /ollama",
    "/openai/": "the routes of Azure's clients end with /openai/deployments/NAME/chat/completions and its like",
    "/v1/engines": "GET /v1/models lists the models",
    "/v1/audio/translations": "translations are not offered; /v1/audio/transcriptions writes down what is said",
    "/v1/responses/": "answers are not kept: send the whole conversation to POST /v1/responses",
    "/v1/messages/batches": "batches are not offered: send each message to POST /v1/messages",
    "/v1/batches": "batches are not offered: send each request by itself",
    "/v1/moderations": "no backend judges texts here",
    "/v1/images/": "pictures are not offered",
    "/v1/videos": "videos are not offered",
    "/v1/realtime": "talks are not offered; /v1/audio/transcriptions hears, and /v1/audio/speech speaks",
    "/v1/fine_tuning/": "models are not trained here",
    "/v2/rerank": "use /v1/rerank",
    "/v1/score": "use /v1/rerank",
    "/v1/text-to-speech/": "use /v1/audio/speech",
    "/completion": "use /v1/completions",
    "/infill": "use /v1/completions",
    "/embedding": "use /v1/embeddings",
    "/models/": "use GET /v1/models/NAME",
    **dict.fromkeys(
        (
            "/v1/assistants",
            "/v1/containers",
            "/v1/conversations",
            "/v1/evals",
            "/v1/files",
            "/v1/threads",
            "/v1/uploads",
            "/v1/vector_stores",
        ),
        _NOTHING_IS_KEPT,
    ),
}
"""By the beginning of a path."""


def hint_for(path: str) -> str:
    """Return what helps somebody who asked for this path, which is no route."""
    return next((hint for beginning, hint in _HINTS.items() if path.startswith(beginning)), _ALL)
