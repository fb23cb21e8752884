"""Runs the recogniser in a child process: starts it, asks it, and ends it when the answer is no longer wanted."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

from corral_backend_sdk import LoadFailed

_PROGRAM: Final = Path(__file__).with_name("recogniser.py")
_LINE_BYTES: Final = 1024 * 1024

Words = list[dict[str, Any]]


class Recogniser:
    """One sound at a time. A request that is given up costs the process: then a new one is started for the next."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            _PROGRAM,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
        )
        try:
            if "ready" not in await _answer(process):
                raise LoadFailed("pocketsphinx could not be started; its log says why")
        except BaseException:
            await self.end()
            raise

    async def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def hear(self, samples: bytes) -> AsyncGenerator[Words, None]:
        """The words of each utterance, as soon as they are known."""
        async with self._turn:
            if self._process is None:
                await self.start()
            is_done = False
            try:
                async for words in self._ask(samples):
                    yield words
                is_done = True
            finally:
                if not is_done:
                    await self.end()

    async def _ask(self, samples: bytes) -> AsyncGenerator[Words, None]:
        process = self._process
        if process is None or process.stdin is None:
            raise RuntimeError("pocketsphinx is not running")
        process.stdin.write(json.dumps({"bytes": len(samples)}).encode() + b"\n" + samples)
        await process.stdin.drain()
        while "end" not in (answer := await _answer(process)):
            if not answer:
                raise RuntimeError("pocketsphinx ended by itself")
            yield answer["segment"]


async def _answer(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """The next word of the process; nothing when it has ended."""
    line = await process.stdout.readline() if process.stdout is not None else b""
    return dict(json.loads(line)) if line else {}
