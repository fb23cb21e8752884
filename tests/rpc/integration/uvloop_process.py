"""A client of a backend on uvloop: what a test would do there, and nothing to say when it went well."""

from contextlib import aclosing
from datetime import timedelta
from typing import Final

import uvloop

from corral.rpc import errors
from corral.rpc.backend import Backend
from corral.rpc.messages import ModelOptions, PredictOptions
from tests.kit.backends import running_backend

LONG: Final = timedelta(seconds=60)


async def main() -> None:
    async with running_backend("echo") as echo:
        await echo.client.load(ModelOptions(Model="m", Options=["tokens:3"]), timeout=LONG)
        async with aclosing(echo.client.predict_stream(PredictOptions(Prompt="a"))) as goes:
            await anext(goes)
        large = PredictOptions(Prompt="x" * 1_000_000)
        batches = [batch async for batch in echo.client.predict_stream(large)]
        assert [len(part.message) for batch in batches for part in batch] == [1_000_000] * 3
        await echo.client.load(ModelOptions(Model="n", Options=["hang_after:1"]), timeout=LONG)
        left = echo.client.predict_stream(PredictOptions(Prompt="a b"))
        await anext(left)
        await echo.client.close()
        await must_be_gone(anext(left))
    async with Backend(echo.address) as gone:
        await must_be_gone(gone.health(timeout=LONG))


async def must_be_gone(asked: object) -> None:
    try:
        await asked  # type: ignore[misc]
    except errors.BackendGone:
        return
    raise AssertionError("it still answers")


uvloop.run(main())
