"""A client of one backend process, over gRPC. No other code of Corral opens gRPC channels.

- A channel connects when it is first used, and again after the connection was lost. So a client outlives the process
  it talks to, and must not be used for another process on the same port (the backend checks the model's identity).
- Deadlines are parameters, no call invents one. Without a deadline a call lasts as long as its caller, or until the
  backend no longer answers pings: `grpc_client/keepalive.py` says when that is.
- Every failure is one of `errors`; a `Result` without success is one as well.
- Cancelling a caller, or closing a stream, cancels that one call in the backend and nothing else.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Final, Self, TypeVar

from google.protobuf.message import DecodeError, Message

from corral.base.tls import TlsPeer
from corral.rpc import errors
from corral.rpc.grpc_client import CallFailed, Channel, Code, Tls
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

_MOST_TOGETHER: Final = 64
"""Parts of an answer that are passed on together. More would delay the slow reader's signal to the backend."""

_SEEDS: Final = 2**31 - 1
"""The largest seed: it must fit into 32 bits with a sign."""

ReplyT = TypeVar("ReplyT", bound=Message)


def draw_seed() -> int:
    """Return a random positive seed. LocalAI's frontend draws one for each load and each request that leaves it open,
    so backends may take 0 and -1 for seeds like any other, and would give the same answer each time."""
    return 1 + secrets.randbelow(_SEEDS)


def _seeded(options: PredictOptions) -> PredictOptions:
    """The options with a seed of their own, if they leave it open."""
    if options.Seed < 0:
        options.Seed = draw_seed()
    return options


class Backend:
    """A client of one backend: an asynchronous context manager, or to be closed by its owner."""

    def __init__(self, address: str, *, token: str = "", tls: TlsPeer | None = None) -> None:
        """`tls` leads to a backend behind a TLS door, which is dialled instead of the address."""
        self.address = address
        metadata = [("authorization", f"Bearer {token}")] if token else []
        self._channel = Channel(
            address if tls is None else tls.address,
            user_agent="corral",
            metadata=metadata,
            tls=None if tls is None else Tls(tls.context, tls.name),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the channel, and with it every call that is still open."""
        await self._channel.close()

    async def health(self, *, timeout: timedelta) -> None:
        """Return if the process serves, whether or not it has a model."""
        reply = await self._call("Health", Reply, HealthMessage(), timeout)
        if reply.message != _HEALTHY:
            raise errors.BackendFailed(self.address, "it says that it is not healthy")

    async def load(self, options: ModelOptions, *, timeout: timedelta) -> str:
        """Load a model, and return the backend's message. A load may go on after its deadline has passed.

        Codes and words that mean something else in other calls are only why it failed: a backend without memory answers
        RESOURCE_EXHAUSTED.
        """
        if options.Seed <= 0:
            options.Seed = draw_seed()
        try:
            result = await self._call("LoadModel", Result, options, timeout)
        except (errors.BackendBusy, errors.BackendGone, errors.TokenRefused):
            raise
        except errors.BackendError as error:
            raise errors.LoadFailed(self.address, error.said) from error
        if not result.success:
            raise errors.LoadFailed(self.address, result.message)
        return result.message

    async def free(self, *, timeout: timedelta) -> None:
        """Free the memory of the model. Many backends do not offer it, and some answer with an empty result: it counts
        as success, as it does for LocalAI."""
        await self._call("Free", Result, HealthMessage(), timeout)

    async def status(self, *, timeout: timedelta) -> StatusResponse:
        """Return what the backend reports about itself; not reliable."""
        return await self._call("Status", StatusResponse, HealthMessage(), timeout)

    async def predict(self, options: PredictOptions, *, timeout: timedelta | None = None) -> Reply:
        return await self._call("Predict", Reply, _seeded(options), timeout)

    def predict_stream(
        self, options: PredictOptions, *, timeout: timedelta | None = None
    ) -> AsyncGenerator[Sequence[Reply], None]:
        """Yield the parts of the answer, those together that are ready together. Close the iterator
        (`contextlib.aclosing`) to cancel the call."""
        return self._stream("PredictStream", Reply, _seeded(options), timeout)

    async def embedding(self, options: PredictOptions, *, timeout: timedelta | None = None) -> EmbeddingResult:
        return await self._call("Embedding", EmbeddingResult, options, timeout)

    async def tokenize(self, options: PredictOptions, *, timeout: timedelta | None = None) -> list[int]:
        """Return the tokens of the prompt."""
        return list((await self._call("TokenizeString", TokenizationResponse, options, timeout)).tokens)

    async def detokenize(self, tokens: Iterable[int], *, timeout: timedelta | None = None) -> str:
        """Return the text of these tokens."""
        return (await self._call("Detokenize", DetokenizeResponse, DetokenizeRequest(tokens=tokens), timeout)).content

    async def rerank(self, request: RerankRequest, *, timeout: timedelta | None = None) -> RerankResult:
        """Rank documents by how well they fit a query."""
        return await self._call("Rerank", RerankResult, request, timeout)

    async def metadata(self, *, timeout: timedelta) -> ModelMetadataResponse:
        """Return what the backend knows about its loaded model. Few offer it."""
        return await self._call("ModelMetadata", ModelMetadataResponse, ModelOptions(), timeout)

    async def speak(self, request: TTSRequest, *, timeout: timedelta | None = None) -> None:
        """Speak a text into the file `dst`, which the backend writes on its own machine."""
        result = await self._call("TTS", Result, request, timeout)
        if not result.success:
            raise errors.BackendFailed(self.address, result.message)

    def speech(self, request: TTSRequest, *, timeout: timedelta | None = None) -> AsyncGenerator[Sequence[Reply], None]:
        """Yield the parts of a spoken text, those together that are ready together."""
        return self._stream("TTSStream", Reply, request, timeout)

    async def transcribe(self, request: TranscriptRequest, *, timeout: timedelta | None = None) -> TranscriptResult:
        """Transcribe the file `dst`, which the backend reads on its own machine."""
        return await self._call("AudioTranscription", TranscriptResult, request, timeout)

    def transcript(
        self, request: TranscriptRequest, *, timeout: timedelta | None = None
    ) -> AsyncGenerator[Sequence[TranscriptStreamResponse], None]:
        """Yield the parts of the transcript of the file `dst`, those together that are ready together. The last part
        has the whole text."""
        return self._stream("AudioTranscriptionStream", TranscriptStreamResponse, request, timeout)

    async def vad(self, request: VADRequest, *, timeout: timedelta | None = None) -> VADResponse:
        """Find the parts of a sound that contain speech."""
        return await self._call("VAD", VADResponse, request, timeout)

    async def _stream(
        self, method: str, answer: type[ReplyT], request: Message, timeout: timedelta | None
    ) -> AsyncGenerator[Sequence[ReplyT], None]:
        """Yield the parts of an answer, those together that are ready together. A call that the backend refused to
        begin, for example because it has too many, is tried again."""
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout.total_seconds()
        path = f"/backend.Backend/{method}"
        for pause in _PAUSES:
            try:
                call = await self._channel.begin(path, request.SerializeToString(), deadline)
            except CallFailed as error:
                raise errors.error_for(self.address, error.status) from error
            with call:
                while messages := await call.next_ready(_MOST_TOGETHER):
                    parts, failure = _decoded(messages, answer)
                    if parts:
                        yield parts
                    if failure is not None:
                        text = f"{method} was answered with something else"
                        raise errors.BackendFailed(self.address, text) from failure
                if not call.was_refused:
                    break
            await asyncio.sleep(pause)
        if call.status is not None and call.status.code is not Code.OK:
            raise errors.error_for(self.address, call.status)

    async def _call(self, method: str, answer: type[ReplyT], request: Message, timeout: timedelta | None) -> ReplyT:
        replies = list[ReplyT]()
        async with aclosing(self._stream(method, answer, request, timeout)) as batches:
            async for batch in batches:
                replies += batch
                if len(replies) > 1:
                    raise errors.BackendFailed(self.address, f"{method} was answered with several messages")
        if not replies:
            raise errors.BackendFailed(self.address, f"{method} was answered without a message")
        return replies[0]


def _decoded(messages: Sequence[bytes], answer: type[ReplyT]) -> tuple[Sequence[ReplyT], DecodeError | None]:
    """Return what is before the first message that is something else, and why that one is."""
    parts = list[ReplyT]()
    try:
        for message in messages:
            parts.append(answer.FromString(message))
    except DecodeError as error:
        return parts, error
    return parts, None
