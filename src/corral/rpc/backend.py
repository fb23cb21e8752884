"""A client of one backend process, over gRPC. No other code of Corral opens gRPC channels.

- A channel connects when it is first used, and again after the connection was lost. So a client outlives the process
  it talks to, and must not be used for another process on the same port (the backend checks the model's identity).
- Deadlines are parameters, no call invents one. Without a deadline a call lasts as long as its caller, or until the
  backend no longer answers pings: `grpc_client/keepalive.py` says when that is.
- Every failure is one of `errors`; a `Result` without success is one as well.
- Cancelling a caller, or closing a stream, cancels that one call in the backend and nothing else.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Generic, Self, TypeVar

from google.protobuf.message import DecodeError, Message

from corral.rpc import errors
from corral.rpc.grpc_client import CallFailed, Channel, Code
from corral.rpc.messages import (
    DetokenizeRequest,
    DetokenizeResponse,
    EmbeddingResult,
    HealthMessage,
    ModelMetadataResponse,
    ModelOptions,
    PredictOptions,
    Reply,
    RerankRequest,
    RerankResult,
    Result,
    StatusResponse,
    TokenizationResponse,
    TranscriptRequest,
    TranscriptResult,
    TranscriptStreamResponse,
    TTSRequest,
    VADRequest,
    VADResponse,
)

_HEALTHY: Final = b"OK"
_PAUSES: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Seconds before a call that a backend refused to begin is tried again."""

ReplyT = TypeVar("ReplyT", bound=Message)


@dataclass(frozen=True, slots=True)
class _Method(Generic[ReplyT]):
    """A method of the contract, and what it is answered with."""

    name: str
    answer: type[ReplyT]

    @property
    def path(self) -> str:
        return f"/backend.Backend/{self.name}"


_HEALTH: Final = _Method("Health", Reply)
_LOAD: Final = _Method("LoadModel", Result)
_FREE: Final = _Method("Free", Result)
_STATUS: Final = _Method("Status", StatusResponse)
_PREDICT: Final = _Method("Predict", Reply)
_PREDICT_STREAM: Final = _Method("PredictStream", Reply)
_EMBEDDING: Final = _Method("Embedding", EmbeddingResult)
_TOKENIZE: Final = _Method("TokenizeString", TokenizationResponse)
_DETOKENIZE: Final = _Method("Detokenize", DetokenizeResponse)
_SPEAK: Final = _Method("TTS", Result)
_SPEECH: Final = _Method("TTSStream", Reply)
_TRANSCRIBE: Final = _Method("AudioTranscription", TranscriptResult)
_TRANSCRIPT: Final = _Method("AudioTranscriptionStream", TranscriptStreamResponse)
_RERANK: Final = _Method("Rerank", RerankResult)
_METADATA: Final = _Method("ModelMetadata", ModelMetadataResponse)
_VAD: Final = _Method("VAD", VADResponse)


class Backend:
    """A client of one backend: an asynchronous context manager, or to be closed by its owner."""

    def __init__(self, address: str, *, token: str = "") -> None:
        self.address = address
        metadata = [("authorization", f"Bearer {token}")] if token else []
        self._channel = Channel(address, user_agent="corral", metadata=metadata)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the channel, and with it every call that is still open."""
        await self._channel.close()

    async def health(self, *, timeout: timedelta) -> None:
        """Return if the process serves; that says nothing about a model."""
        reply = await self._call(_HEALTH, HealthMessage(), timeout)
        if reply.message != _HEALTHY:
            raise errors.BackendFailed(self.address, "it says that it is not healthy")

    async def load(self, options: ModelOptions, *, timeout: timedelta) -> str:
        """Load a model; what the backend has to say about it. A load whose deadline passes may still be going on."""
        try:
            result = await self._call(_LOAD, options, timeout)
        except (errors.BackendFailed, errors.RequestRefused) as error:
            raise errors.LoadFailed(self.address, error.said) from error
        if not result.success:
            raise errors.LoadFailed(self.address, result.message)
        return result.message

    async def free(self, *, timeout: timedelta) -> None:
        """Free the memory of the model. Many backends do not offer it, and some answer with an empty result: it counts
        as success, as it does for LocalAI."""
        await self._call(_FREE, HealthMessage(), timeout)

    async def status(self, *, timeout: timedelta) -> StatusResponse:
        """What the backend says about itself; not to be relied on."""
        return await self._call(_STATUS, HealthMessage(), timeout)

    async def predict(self, options: PredictOptions, *, timeout: timedelta | None = None) -> Reply:
        return await self._call(_PREDICT, options, timeout)

    def predict_stream(
        self, options: PredictOptions, *, timeout: timedelta | None = None
    ) -> AsyncGenerator[Reply, None]:
        """The answer in parts. Close the iterator (`contextlib.aclosing`) to end the call before its end."""
        return self._stream(_PREDICT_STREAM, options, timeout)

    async def embedding(self, options: PredictOptions, *, timeout: timedelta | None = None) -> EmbeddingResult:
        return await self._call(_EMBEDDING, options, timeout)

    async def tokenize(self, options: PredictOptions, *, timeout: timedelta | None = None) -> list[int]:
        """The tokens of the prompt."""
        return list((await self._call(_TOKENIZE, options, timeout)).tokens)

    async def detokenize(self, tokens: Iterable[int], *, timeout: timedelta | None = None) -> str:
        """The text of these tokens."""
        return (await self._call(_DETOKENIZE, DetokenizeRequest(tokens=tokens), timeout)).content

    async def rerank(self, request: RerankRequest, *, timeout: timedelta | None = None) -> RerankResult:
        """How well documents fit a question."""
        return await self._call(_RERANK, request, timeout)

    async def metadata(self, *, timeout: timedelta) -> ModelMetadataResponse:
        """What the backend knows of the model that it has loaded. Few offer it."""
        return await self._call(_METADATA, ModelOptions(), timeout)

    async def speak(self, request: TTSRequest, *, timeout: timedelta | None = None) -> None:
        """Have a text spoken into the file `dst`, which the backend writes on its own machine."""
        result = await self._call(_SPEAK, request, timeout)
        if not result.success:
            raise errors.BackendFailed(self.address, result.message)

    def speech(self, request: TTSRequest, *, timeout: timedelta | None = None) -> AsyncGenerator[Reply, None]:
        """A text as sound, in parts."""
        return self._stream(_SPEECH, request, timeout)

    async def transcribe(self, request: TranscriptRequest, *, timeout: timedelta | None = None) -> TranscriptResult:
        """What is said in the file `dst`, which the backend reads on its own machine."""
        return await self._call(_TRANSCRIBE, request, timeout)

    def transcript(
        self, request: TranscriptRequest, *, timeout: timedelta | None = None
    ) -> AsyncGenerator[TranscriptStreamResponse, None]:
        """What is said in the file `dst`, in parts; the last part has the whole text."""
        return self._stream(_TRANSCRIPT, request, timeout)

    async def vad(self, request: VADRequest, *, timeout: timedelta | None = None) -> VADResponse:
        """Where in a sound somebody speaks."""
        return await self._call(_VAD, request, timeout)

    async def _stream(
        self, method: _Method[ReplyT], request: Message, timeout: timedelta | None
    ) -> AsyncGenerator[ReplyT, None]:
        """The parts of an answer. A call that the backend refused to begin, as when it has too many, is tried again."""
        deadline = _deadline(timeout)
        for pause in _PAUSES:
            try:
                call = await self._channel.begin(method.path, request.SerializeToString(), deadline)
            except CallFailed as error:
                raise errors.error_for(self.address, error.status) from error
            with call:
                while (message := await call.next()) is not None:
                    yield self._parsed(method, message)
                if not call.was_refused:
                    break
            await asyncio.sleep(pause)
        if call.status is not None and call.status.code is not Code.OK:
            raise errors.error_for(self.address, call.status)

    async def _call(self, method: _Method[ReplyT], request: Message, timeout: timedelta | None) -> ReplyT:
        async with aclosing(self._stream(method, request, timeout)) as answers:
            answer = await anext(answers, None)
            if answer is None:
                raise errors.BackendFailed(self.address, f"{method.name} was answered without a message")
            if await anext(answers, None) is not None:
                raise errors.BackendFailed(self.address, f"{method.name} was answered with several messages")
        return answer

    def _parsed(self, method: _Method[ReplyT], message: bytes) -> ReplyT:
        try:
            return method.answer.FromString(message)
        except DecodeError as error:
            raise errors.BackendFailed(self.address, f"{method.name} was answered with something else") from error


def _deadline(timeout: timedelta | None) -> float | None:
    return None if timeout is None else asyncio.get_running_loop().time() + timeout.total_seconds()
