"""Small backends for tests of what supervises them: real processes, each with one way to misbehave.

They say what they do through a named pipe, so that a test waits for an event and not for time.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.kit.backends import BACKENDS

_SERVE: Final = """
import asyncio, os, signal, subprocess, sys
sys.path.insert(0, {sdk!r})
from corral_backend_sdk import Backend, ModelOptions, serve

def say(word):
    with open({pipe!r}, "a") as pipe:
        pipe.write(word + "\\n")

class Script(Backend):
    name = "script"

    async def load(self, options: ModelOptions) -> str:
        return "loaded"

    async def predict(self, request):
        raise AssertionError("nobody asks")

{body}
serve(Script)
"""
IGNORES_SIGTERM: Final = """
import corral_backend_sdk.process as process

async def run(backend, launch, *, token):
    signal.signal(signal.SIGTERM, lambda *_: say("SIGTERM"))
    server = process.aio.server()
    server.add_generic_rpc_handlers((process.Service(backend, token=token, end=sys.exit).handler(),))
    server.add_insecure_port(launch.address)
    await server.start()
    while True:
        await asyncio.sleep(0.01)

process._run = run
"""
"""Part of a serving backend that hears the request to end and goes on."""
CLOSES_ITS_PORT: Final = """
import corral_backend_sdk.process as process

async def run(backend, launch, *, token):
    closing = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, closing.set)
    server = process.aio.server()
    server.add_generic_rpc_handlers((process.Service(backend, token=token, end=sys.exit).handler(),))
    server.add_insecure_port(launch.address)
    await server.start()
    await closing.wait()
    await server.stop(None)
    say("closed")
    await asyncio.Event().wait()

process._run = run
"""
"""Part of a serving backend that stops listening at SIGUSR1, and stays."""
GO_ON: Final = "go on"
PACED_ENGINE: Final = r"""
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
going_on = asyncio.Event()

async def answer(reader, writer):
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split()[0])
    if b'"go on"' in await reader.readexactly(length):
        going_on.set()
    writer.write(HEAD + b'data: {"choices":[]}\n\n')
    say("begun")
    waiting = {asyncio.ensure_future(reader.read(1)): "aborted", asyncio.ensure_future(going_on.wait()): "finished"}
    done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    writer.write(b"data: [DONE]\n\n")
    writer.close()
    say(waiting[done.pop()])

async def load(self, options):
    host, _, port = self.launch.http_address.rpartition(":")
    self.server = await asyncio.start_server(answer, host, int(port), backlog=1024)
    return "loaded"

Script.load = load
"""
"""Part of a backend with an OpenAI port: every stream waits after its first event until somebody asks it to go on."""
OPENAI_PORT: Final = '{"http": {"protocol": "openai"}}'
"""The content of the file `corral.json` of a backend with an OpenAI port."""


class Pipe:
    """What processes write to a pipe, line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        path.chmod(0o666)  # confined backends are users of their own
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    async def line(self) -> str:
        """Return the next line; blocks until it is written."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._rest:
            readable = asyncio.Event()
            loop.add_reader(self._descriptor, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(self._descriptor)
            self._rest += os.read(self._descriptor, 4096)
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        os.close(self._descriptor)


@contextlib.contextmanager
def open_pipe(path: Path) -> Iterator[Pipe]:
    pipe = Pipe(path)
    try:
        yield pipe
    finally:
        pipe.close()


def write_backend(folder: Path, name: str, *, shell: str) -> Path:
    """A backend whose `run.sh` is this text; returns its directory."""
    directory = folder / name
    directory.mkdir(parents=True)
    script = directory / "run.sh"
    script.write_text(f"#!/bin/sh\n{shell}\n", encoding="utf-8")
    script.chmod(0o755)
    return directory


def write_serving_backend(folder: Path, name: str, *, pipe: Path | None = None, body: str = "") -> Path:
    """A backend that becomes ready. `body` is Python that runs before; it may `say` a word through the pipe."""
    directory = write_backend(folder, name, shell=f'exec "{sys.executable}" "$(dirname "$0")/backend.py" "$@"')
    text = _SERVE.format(sdk=str(BACKENDS / "sdk"), pipe=str(pipe), body=body)
    (directory / "backend.py").write_text(text, encoding="utf-8")
    return directory
