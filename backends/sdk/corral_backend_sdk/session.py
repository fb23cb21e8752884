"""The one model of the process: loaded or not, under which identity, and who is using it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import grpc

from corral_backend_sdk.backend import Backend
from corral_backend_sdk.messages import ModelOptions, StatusResponse

_PATIENCE_SECONDS: Final = 3.0
"""How long requests that are being served may go on when the model is to be freed; callers of Free give it five."""


class Refusal(Exception):
    """A request that is not served, with the status that says so."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class Session:
    """Loading and freeing exclude each other, and wait for requests that are being served."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._changing = asyncio.Lock()
        self._loaded: ModelOptions | None = None
        self._serving: set[asyncio.Task[object]] = set()
        self._cut_off: set[asyncio.Task[object]] = set()

    @property
    def state(self) -> StatusResponse.State:
        if self._loaded is None:
            return StatusResponse.UNINITIALIZED
        return StatusResponse.BUSY if self._serving or self._changing.locked() else StatusResponse.READY

    async def load(self, options: ModelOptions) -> str:
        """Loading again what is loaded does nothing. A failed load leaves no model."""
        async with self._changing:
            if self._loaded is not None and _without_seed(self._loaded) == _without_seed(options):
                return "The model is loaded already"
            await self._empty()
            said = await self._backend.load(options)
            self._loaded = options
            return said

    async def free(self) -> None:
        async with self._changing:
            await self._empty()

    @asynccontextmanager
    async def serving(self, identity: str) -> AsyncIterator[None]:
        """For the time of one request. Refuses it unless the model it means is loaded; no name means any."""
        name = self._backend.name
        if self._loaded is None:
            raise Refusal(grpc.StatusCode.FAILED_PRECONDITION, f"{name}: model not loaded")
        if identity and self._loaded.Model and identity != self._loaded.Model:
            words = f'{name}: model identity mismatch: loaded "{self._loaded.Model}", requested "{identity}"'
            raise Refusal(grpc.StatusCode.NOT_FOUND, words)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - gRPC runs every request in a task
        self._serving.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._cut_off:
                raise
            task.uncancel()  # it is our doing, and the client is still there: gRPC tells it nothing by itself
            raise Refusal(grpc.StatusCode.FAILED_PRECONDITION, f"{name}: model not loaded: it was freed") from None
        finally:
            self._serving.discard(task)
            self._cut_off.discard(task)

    async def _empty(self) -> None:
        """New requests are refused from here on; those that are being served get a little time."""
        if self._loaded is None:
            return
        self._loaded = None
        if self._serving:
            await asyncio.wait(set(self._serving), timeout=_PATIENCE_SECONDS)
        for task in (rest := set(self._serving)):
            self._cut_off.add(task)
            task.cancel()
        if rest:
            await asyncio.wait(rest)
        await self._backend.free()


def _without_seed(options: ModelOptions) -> ModelOptions:
    """The frontend draws a new seed for every load."""
    same = ModelOptions()
    same.CopyFrom(options)
    same.ClearField("Seed")
    return same
