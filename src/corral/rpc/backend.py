"""One backend process at the other end of a gRPC channel: the only code of Corral's that opens one.

- A channel connects when it is first used, and again by itself; so a client outlives the process it talks to, and must
  not be used for another process that was given the same port (the model's identity is checked by the backend).
- Deadlines are parameters, no call invents one. Without one a call lasts as long as its caller.
- Every failure is one of `errors`; a `Result` without success is one as well.
- Cancelling a caller, or closing a stream, cancels that one call in the backend and nothing else.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final, Self, TypeVar

from grpc import aio

from corral.rpc import errors
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
from corral.rpc.status import error_for

MAX_MESSAGE_BYTES: Final = 50 * 1024 * 1024
_HEALTHY: Final = b"OK"
_OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),  # nodes are reached directly, whatever the environment says about proxies
    ("grpc.use_local_subchannel_pool", 1),  # a dead port's backoff stays with the client that met it
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),  # a backend that starts is seen soon after it listens
    ("grpc.enable_retries", 0),
)

Answer = TypeVar("Answer")


class _Methods:
    """The methods of the contract that Corral calls, on one channel."""

    def __init__(self, channel: aio.Channel) -> None:
        self.health = channel.unary_unary(_path("Health"), HealthMessage.SerializeToString, Reply.FromString)
        self.load = channel.unary_unary(_path("LoadModel"), ModelOptions.SerializeToString, Result.FromString)
        self.free = channel.unary_unary(_path("Free"), HealthMessage.SerializeToString, Result.FromString)
        self.status = channel.unary_unary(_path("Status"), HealthMessage.SerializeToString, StatusResponse.FromString)
        self.predict = channel.unary_unary(_path("Predict"), PredictOptions.SerializeToString, Reply.FromString)
        self.stream = channel.unary_stream(_path("PredictStream"), PredictOptions.SerializeToString, Reply.FromString)
        self.embedding = channel.unary_unary(
            _path("Embedding"), PredictOptions.SerializeToString, EmbeddingResult.FromString
        )
        self.tokenize = channel.unary_unary(
            _path("TokenizeString"), PredictOptions.SerializeToString, TokenizationResponse.FromString
        )
        self.detokenize = channel.unary_unary(
            _path("Detokenize"), DetokenizeRequest.SerializeToString, DetokenizeResponse.FromString
        )
        self.speak = channel.unary_unary(_path("TTS"), TTSRequest.SerializeToString, Result.FromString)
        self.speech = channel.unary_stream(_path("TTSStream"), TTSRequest.SerializeToString, Reply.FromString)
        self.transcribe = channel.unary_unary(
            _path("AudioTranscription"), TranscriptRequest.SerializeToString, TranscriptResult.FromString
        )
        self.transcript = channel.unary_stream(
            _path("AudioTranscriptionStream"), TranscriptRequest.SerializeToString, TranscriptStreamResponse.FromString
        )
        self.rerank = channel.unary_unary(_path("Rerank"), RerankRequest.SerializeToString, RerankResult.FromString)
        self.metadata = channel.unary_unary(
            _path("ModelMetadata"), ModelOptions.SerializeToString, ModelMetadataResponse.FromString
        )
        self.vad = channel.unary_unary(_path("VAD"), VADRequest.SerializeToString, VADResponse.FromString)


class Backend:
    """A client of one backend. Used as an asynchronous context, or closed by hand."""

    def __init__(self, address: str, *, token: str = "") -> None:
        self.address = address
        self._metadata = (("authorization", f"Bearer {token}"),) if token else None
        self._channel: aio.Channel | None = aio.insecure_channel(address, options=_OPTIONS)
        self._open: _Methods | None = _Methods(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the channel, and with it every call that is still open. gRPC ends its threads with its last channel."""
        channel, self._channel, self._open = self._channel, None, None
        if channel is not None:
            await channel.close()

    @property
    def _methods(self) -> _Methods:
        if self._open is None:
            raise errors.BackendGone(self.address, "the channel is closed")
        return self._open

    async def health(self, *, timeout: timedelta) -> None:
        """Return if the process serves; that says nothing about a model."""
        reply = await self._call(self._methods.health, HealthMessage(), timeout)
        if reply.message != _HEALTHY:
            raise errors.BackendFailed(self.address, "it says that it is not healthy")

    async def load(self, options: ModelOptions, *, timeout: timedelta) -> str:
        """Load a model; what the backend has to say about it. A load whose deadline passes may still be going on."""
        try:
            result = await self._call(self._methods.load, options, timeout)
        except (errors.BackendFailed, errors.RequestRefused) as error:
            raise errors.LoadFailed(self.address, error.said) from error
        if not result.success:
            raise errors.LoadFailed(self.address, result.message)
        return result.message

    async def free(self, *, timeout: timedelta) -> None:
        """Give the model's memory back. Many backends do not offer it, and some that do answer with an empty result:
        an answer is all that counts, as for LocalAI."""
        await self._call(self._methods.free, HealthMessage(), timeout)

    async def status(self, *, timeout: timedelta) -> StatusResponse:
        """What the backend says about itself; not to be relied on."""
        return await self._call(self._methods.status, HealthMessage(), timeout)

    async def predict(self, options: PredictOptions, *, timeout: timedelta | None = None) -> Reply:
        return await self._call(self._methods.predict, options, timeout)

    def predict_stream(
        self, options: PredictOptions, *, timeout: timedelta | None = None
    ) -> AsyncGenerator[Reply, None]:
        """The answer in parts. Close the iterator (`contextlib.aclosing`) to end the call before its end."""
        return self._stream(lambda: self._methods.stream, options, timeout, Reply)

    async def embedding(self, options: PredictOptions, *, timeout: timedelta | None = None) -> EmbeddingResult:
        return await self._call(self._methods.embedding, options, timeout)

    async def tokenize(self, options: PredictOptions, *, timeout: timedelta | None = None) -> list[int]:
        """The tokens of the prompt."""
        return list((await self._call(self._methods.tokenize, options, timeout)).tokens)

    async def detokenize(self, tokens: Iterable[int], *, timeout: timedelta | None = None) -> str:
        """The text of these tokens."""
        return (await self._call(self._methods.detokenize, DetokenizeRequest(tokens=tokens), timeout)).content

    async def rerank(self, request: RerankRequest, *, timeout: timedelta | None = None) -> RerankResult:
        """How well documents fit a question."""
        return await self._call(self._methods.rerank, request, timeout)

    async def metadata(self, *, timeout: timedelta) -> ModelMetadataResponse:
        """What the backend knows of the model that it has loaded. Few offer it."""
        return await self._call(self._methods.metadata, ModelOptions(), timeout)

    async def speak(self, request: TTSRequest, *, timeout: timedelta | None = None) -> None:
        """Have a text spoken into the file `dst`, which the backend writes on its own machine."""
        result = await self._call(self._methods.speak, request, timeout)
        if not result.success:
            raise errors.BackendFailed(self.address, result.message)

    def speech(self, request: TTSRequest, *, timeout: timedelta | None = None) -> AsyncGenerator[Reply, None]:
        """A text as sound, in parts."""
        return self._stream(lambda: self._methods.speech, request, timeout, Reply)

    async def transcribe(self, request: TranscriptRequest, *, timeout: timedelta | None = None) -> TranscriptResult:
        """What is said in the file `dst`, which the backend reads on its own machine."""
        return await self._call(self._methods.transcribe, request, timeout)

    def transcript(
        self, request: TranscriptRequest, *, timeout: timedelta | None = None
    ) -> AsyncGenerator[TranscriptStreamResponse, None]:
        """The same in parts; the last one has the whole."""
        return self._stream(lambda: self._methods.transcript, request, timeout, TranscriptStreamResponse)

    async def vad(self, request: VADRequest, *, timeout: timedelta | None = None) -> VADResponse:
        """Where in a sound somebody speaks."""
        return await self._call(self._methods.vad, request, timeout)

    async def _stream(
        self,
        method: Callable[[], Callable[..., aio.UnaryStreamCall[Any, Any]]],
        request: object,
        timeout: timedelta | None,
        kind: type[Answer],
    ) -> AsyncGenerator[Answer, None]:
        call = method()(request, timeout=_seconds(timeout), metadata=self._metadata)
        try:
            async with self._translated():
                while isinstance(part := await call.read(), kind):
                    yield part
        finally:
            call.cancel()  # of no effect on a call that has ended

    async def _call(
        self, method: Callable[..., Awaitable[Answer]], request: object, timeout: timedelta | None
    ) -> Answer:
        async with self._translated():
            return await method(request, timeout=_seconds(timeout), metadata=self._metadata)

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        try:
            yield
        except aio.AioRpcError as error:
            raise error_for(self.address, error.code(), error.details() or "") from error
        except aio.UsageError as error:
            raise errors.BackendGone(self.address, "the channel is closed") from error
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            # gRPC says the same to calls on a channel that is closed beside them; but their tasks go on.
            raise errors.BackendGone(self.address, "the channel was closed") from error


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _path(method: str) -> str:
    return f"/backend.Backend/{method}"


def _seconds(timeout: timedelta | None) -> float | None:
    return None if timeout is None else timeout.total_seconds()
