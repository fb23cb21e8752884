"""The contract of a backend, kept for all of them: token, identity, health, and the meaning of status codes.

Every call passes here, those to methods that the backend does not offer included. Health answers at once, with or
without a model, whatever else is going on.
"""

import hmac
import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from grpc import aio

from corral_backend_sdk._generated import backend_pb2
from corral_backend_sdk.backend import Backend, LoadFailed, NotOffered, PortTaken, RequestRefused
from corral_backend_sdk.messages import (
    ChatDelta,
    HealthMessage,
    MemoryUsageData,
    ModelOptions,
    PredictOptions,
    Reply,
    Result,
    StatusResponse,
    ToolCallDelta,
)
from corral_backend_sdk.session import Refusal, Session

log = logging.getLogger("backend")

MAX_MESSAGE_BYTES: Final = 50 * 1024 * 1024
SERVER_OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a port that another process has is an error, not a share of its calls
)
_SERVICE: Final = backend_pb2.DESCRIPTOR.services_by_name["Backend"]
_SNAKE: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

Context = aio.ServicerContext[Any, Any]
Unary = Callable[[Any], Awaitable[Message]]
Stream = Callable[[Any], AsyncGenerator[Message, None]]


def method_name(rpc: str) -> str:
    """The name of an RPC as a backend defines it: PredictStream is `predict_stream`, TTS is `tts`."""
    return _SNAKE.sub("_", rpc).lower()


class Service:
    """Answers the calls of the contract for one backend."""

    def __init__(self, backend: Backend, *, token: str, end: Callable[[], None]) -> None:
        """`end` has the process end soon."""
        self._backend = backend
        self._end = end
        self._expected = f"Bearer {token}".encode() if token else b""
        self.session = Session(backend)
        self._own: dict[str, Unary] = {
            "Health": self._health,
            "LoadModel": self._load,
            "Free": self._free,
            "Status": self._status,
        }

    def handler(self) -> grpc.GenericRpcHandler:
        """One handler for every method of the contract."""
        handlers = {method.name: self._handler_of(method) for method in _SERVICE.methods}
        return grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers)

    def _handler_of(self, method: MethodDescriptor) -> "grpc.RpcMethodHandler[Any, Any]":
        request = getattr(backend_pb2, method.input_type.name)
        coding = {"request_deserializer": request.FromString, "response_serializer": _serialize}
        if method.client_streaming:
            return grpc.stream_stream_rpc_method_handler(self._both_ways(method.name), **coding)
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(self._outward(method.name), **coding)
        return grpc.unary_unary_rpc_method_handler(self._single(method.name), **coding)

    # The three kinds of methods.

    def _single(self, rpc: str) -> Callable[[Message, Context], Awaitable[Message]]:
        own = self._own.get(rpc)
        offered = self._offered_once(rpc)

        async def answer(request: Message, context: Context) -> Message:
            async with self._answering(rpc, context):
                if own is not None:
                    return await own(request)
                if offered is None:
                    raise self._unimplemented(rpc)
                async with self.session.serving(_identity(request)):
                    return await offered(request)
            raise AssertionError("unreachable: a refused call is aborted")

        return answer

    def _outward(self, rpc: str) -> Callable[[Message, Context], AsyncIterator[Message]]:
        offered = self._offered_stream(rpc)

        async def answer(request: Message, context: Context) -> AsyncIterator[Message]:
            async with self._answering(rpc, context):
                if offered is None:
                    raise self._unimplemented(rpc)
                async with self.session.serving(_identity(request)), aclosing(offered(request)) as parts:
                    async for part in parts:
                        yield part

        return answer

    def _both_ways(self, rpc: str) -> Callable[[AsyncIterator[Message], Context], AsyncIterator[Message]]:
        offered: Stream | None = getattr(self._backend, method_name(rpc), None)

        async def answer(requests: AsyncIterator[Message], context: Context) -> AsyncIterator[Message]:
            async with self._answering(rpc, context):
                if offered is None:
                    raise self._unimplemented(rpc)
                async with self.session.serving(""), aclosing(offered(requests)) as parts:
                    async for part in parts:
                        yield part

        return answer

    def _offered_once(self, rpc: str) -> Unary | None:
        """What the backend defines; Predict can be had from a stream as well."""
        defined: Unary | None = getattr(self._backend, method_name(rpc), None)
        streamed: Stream | None = getattr(self._backend, "predict_stream", None)
        if rpc != "Predict" or defined is not None or streamed is None:
            return defined
        stream = streamed

        async def joined(request: PredictOptions) -> Reply:
            return join_replies([part async for part in stream(request) if isinstance(part, Reply)])

        return joined

    def _offered_stream(self, rpc: str) -> Stream | None:
        """What the backend defines; PredictStream can be a single part as well."""
        defined: Stream | None = getattr(self._backend, method_name(rpc), None)
        single: Unary | None = getattr(self._backend, "predict", None)
        if rpc != "PredictStream" or defined is not None or single is None:
            return defined
        predict = single

        async def one_part(request: PredictOptions) -> AsyncGenerator[Message, None]:
            yield await predict(request)

        return one_part

    def _unimplemented(self, rpc: str) -> Refusal:
        return Refusal(grpc.StatusCode.UNIMPLEMENTED, f"{self._backend.name}: {rpc} is unimplemented")

    # What the SDK answers itself.

    async def _health(self, _: HealthMessage) -> Reply:
        return Reply(message=b"OK")

    async def _load(self, options: ModelOptions) -> Result:
        try:
            return Result(success=True, message=await self.session.load(options))
        except LoadFailed as error:
            log.error("load failed: %s", error)  # noqa: TRY400 - the reason says it all
            return Result(success=False, message=str(error))
        except PortTaken as error:
            log.error("load failed: %s", error)  # noqa: TRY400 - the reason says it all
            self._end()
            raise Refusal(grpc.StatusCode.UNAVAILABLE, str(error)) from error
        except Exception as error:
            log.exception("load failed")
            return Result(success=False, message=f"{type(error).__name__}: {error}")

    async def _free(self, _: HealthMessage) -> Result:
        await self.session.free()
        return Result(success=True, message="freed")

    async def _status(self, _: HealthMessage) -> StatusResponse:
        resident = _resident_bytes()
        memory = MemoryUsageData(total=resident, breakdown={"resident": resident})
        return StatusResponse(state=self.session.state, memory=memory)

    # Around every call.

    @asynccontextmanager
    async def _answering(self, rpc: str, context: Context) -> AsyncIterator[None]:
        try:
            self._check_token(context)
            yield
        except Refusal as refusal:
            await context.abort(refusal.code, refusal.details)
        except RequestRefused as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except NotOffered as error:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, str(error))
        except (aio.AbortError, aio.UsageError):
            raise
        except Exception as error:
            log.exception("%s failed", rpc)
            await context.abort(grpc.StatusCode.INTERNAL, f"{self._backend.name}: {type(error).__name__}: {error}")

    def _check_token(self, context: Context) -> None:
        if not self._expected:
            return
        for shown in _authorizations(context):
            if hmac.compare_digest(shown, self._expected):
                return
        raise Refusal(grpc.StatusCode.UNAUTHENTICATED, "invalid token")


def _authorizations(context: Context) -> Iterator[bytes]:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            yield value if isinstance(value, bytes) else value.encode()


def _identity(request: Message) -> str:
    return str(getattr(request, "ModelIdentity", ""))


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * 4096


def join_replies(parts: Iterable[Reply]) -> Reply:
    """A streamed answer as one: texts and likelihoods add up, the last counts are the valid ones."""
    whole = Reply()
    text: list[bytes] = []
    deltas: list[ChatDelta] = []
    logprobs: list[bytes] = []
    for part in parts:
        text.append(part.message)
        deltas.extend(part.chat_deltas)
        logprobs += [part.logprobs] if part.logprobs else []
        rest = Reply()
        rest.CopyFrom(part)
        for field in ("message", "chat_deltas", "logprobs"):
            rest.ClearField(field)
        whole.MergeFrom(rest)
    whole.message = b"".join(text)
    whole.logprobs = _join_logprobs(logprobs)
    if deltas:
        whole.chat_deltas.append(_join_deltas(deltas))
    return whole


def _join_logprobs(parts: list[bytes]) -> bytes:
    """One entry for each token, in OpenAI's shape; where a part has another, the last one counts."""
    try:
        entries = [entry for part in parts for entry in json.loads(part)["content"]]
    except (ValueError, KeyError, TypeError):
        return parts[-1]
    return json.dumps({"content": entries}).encode() if entries else b""


def _join_deltas(deltas: Iterable[ChatDelta]) -> ChatDelta:
    """The whole message; the fragments of one tool call have the same index."""
    whole = ChatDelta()
    calls: dict[int, ToolCallDelta] = {}
    for delta in deltas:
        whole.content += delta.content
        whole.reasoning_content += delta.reasoning_content
        for fragment in delta.tool_calls:
            call = calls.setdefault(fragment.index, ToolCallDelta(index=fragment.index))
            call.id = call.id or fragment.id
            call.name = call.name or fragment.name
            call.arguments += fragment.arguments
    whole.tool_calls.extend(calls[index] for index in sorted(calls))
    return whole
