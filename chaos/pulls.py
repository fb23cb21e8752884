"""A pull of a model, killed at each of its steps: what is on the disk and in the catalogue after a restart.

Whenever the frontend and its download die, together or one of them, a frontend that starts again ends with every file
as it was promised and with the model, and leaves nothing else. Counted is what had to come over the network twice.
"""

import asyncio
import hashlib
import json
import shutil
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.crash_shim import steps_in
from chaos.round import Workshop
from tests.kit.file_server import ServedRequest
from tests.kit.gguf import LLAMA, gguf
from tests.kit.hub_server import HuggingFaceServer
from tests.kit.waiting import WAIT_TIMEOUT

_ROOT: Final = Path(__file__).absolute().parents[1]
_KILLED: Final = -9
_PART_BYTES: Final = 3 * 1024 * 1024
_WEIGHTS: Final = gguf(**LLAMA, tokenizer__chat_template="{{ messages }}")
_OTHER: Final = ".corral"
_CHUNK_SECONDS: Final = 0.001
"""Between chunks of the server: a loopback takes megabytes that nobody has read yet, which no line does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullAct:
    name: str
    reference: str
    """With `{server}` and `{folder}`."""
    takes_parent: bool = True
    """Whether a download takes the frontend with it, as a machine without power does."""


ACTS: Final = (
    PullAct(name="pull", reference="hf://org/parts"),
    PullAct(name="pull whose download dies alone", reference="hf://org/parts", takes_parent=False),
    PullAct(name="pull without digests", reference="{server}/plain/whole.gguf"),
    PullAct(name="pull of a file", reference="file://{folder}/local.gguf"),
)


async def killed_at_every_step(workshop: Workshop) -> None:
    """For each act, kill at as many steps as the workshop has, chosen by its seed; at all of them if there are not
    more."""
    with HuggingFaceServer() as server:
        async with _driver() as driver:
            matrix = PullMatrix(workshop, server, driver)
            await matrix.prepare()
            for act in ACTS:
                await matrix.run(act)


class PullMatrix:
    def __init__(self, workshop: Workshop, server: HuggingFaceServer, driver: asyncio.subprocess.Process) -> None:
        self._workshop = workshop
        self._server = server
        self._driver = driver
        self._folder = workshop.directory
        self._runs = 0
        self._orders = 0
        self._contents: dict[str, bytes] = {}

    async def prepare(self) -> None:
        """A model of two files with digests, one without, and one on this machine; and an empty database."""
        random = self._workshop.random
        parts = {f"parts-0000{number}-of-00002.gguf": _WEIGHTS + random.randbytes(_PART_BYTES) for number in (1, 2)}
        whole = _WEIGHTS + random.randbytes(_PART_BYTES)
        self._server.before_chunk = lambda _: time.sleep(_CHUNK_SECONDS)
        self._server.add_repository("org/parts", parts)
        self._server.add("/plain/whole.gguf", whole)
        (self._folder / "local.gguf").write_bytes(whole)
        self._contents = {**parts, "whole.gguf": whole, "local.gguf": whole}
        async with self._workshop.databases.fresh_url("sqlite") as url:
            shutil.copy(url.removeprefix("sqlite:///"), self._folder / "empty.db")

    async def run(self, act: PullAct) -> None:
        folder = await self._played(act, fatal=0)
        self._check(folder, act, "at its end")
        steps = steps_in(self._trace)
        every = range(1, len(steps) + 1)
        chosen = sorted(self._workshop.random.sample(every, min(len(steps), self._workshop.steps)))
        twice = [await self._crash(act, number, steps[number - 1]) for number in chosen]
        total, most = sum(twice), max(twice, default=0)
        self._workshop.story.measure(
            f"{act.name}: {len(steps)} steps, killed at {len(chosen)} of them, all whole; fetched twice: "
            f"{total / 1024 / max(1, len(twice)):.1f} KiB per kill, {most / 1024:.1f} KiB at most"
        )

    async def _crash(self, act: PullAct, number: int, step: str) -> int:
        """Kill at a step, start again, and return how many bytes came twice."""
        where = f"killed at step {number} ({step})"
        self._server.requests.clear()
        folder = await self._played(act, fatal=number)
        code = await self._order(act, folder, fatal=0)
        assert code == 0, f"{act.name} {where}: the frontend that started again ended with {code}"
        self._check(folder, act, where)
        twice = max(0, self._fetched_bytes() - self._promised_bytes(act))
        self._workshop.story.tell(f"{act.name} {where}: whole, {twice} bytes came twice")
        return twice

    def _fetched_bytes(self) -> int:
        """What downloads were sent, without what planning read of the heads of files."""
        files = [request for request in self._server.requests if request.path.endswith(".gguf")]
        return sum(request.sent for request in files if _is_download(request))

    def _names(self, act: PullAct) -> list[str]:
        if "parts" in act.reference:
            return [name for name in self._contents if name.startswith("parts")]
        return [act.reference.rpartition("/")[2]]

    def _promised_bytes(self, act: PullAct) -> int:
        return 0 if act.reference.startswith("file:") else sum(len(self._contents[name]) for name in self._names(act))

    # Playing.

    async def _played(self, act: PullAct, *, fatal: int) -> Path:
        """Pull from nothing up to the fatal step. Concurrent work may take one step less than last time; then nothing
        is killed."""
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        shutil.rmtree(self._folder / f"run-{self._runs - 1}", ignore_errors=True)
        folder.mkdir()
        shutil.copy(self._folder / "empty.db", folder / "corral.db")
        code = await self._order(act, folder, fatal=fatal)
        assert code in ((0, _KILLED) if fatal else (0,)), f"{act.name} with {fatal} as its last step ended with {code}"
        return folder

    @property
    def _trace(self) -> Path:
        return self._folder / "trace"

    async def _order(self, act: PullAct, folder: Path, *, fatal: int) -> int:
        self._trace.unlink(missing_ok=True)
        self._orders += 1
        order = {
            "reference": act.reference.format(server=self._server.base, folder=self._folder),
            "hub": self._server.base,
            "folder": str(folder),
            "site": str(folder / f"site-{self._orders}"),  # never the same: Python would take the old one's byte code
            "trace": str(self._trace),
            "fatal": fatal,
            "takes_parent": act.takes_parent,
        }
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        self._driver.stdin.write(json.dumps(order).encode() + b"\n")
        async with asyncio.timeout(WAIT_TIMEOUT.total_seconds()):
            return int(await self._driver.stdout.readline())

    # Checking.

    def _check(self, folder: Path, act: PullAct, where: str) -> None:
        """The files are there and nothing else; the model is in the database once, with their digests."""
        models, names = folder / "models", self._names(act)
        found = {path.name: path for path in models.rglob("*") if path.is_file() and _OTHER not in path.parts}
        assert set(found) == set(names), f"{act.name} {where}: there are {sorted(found)}"
        for name in names:
            assert found[name].read_bytes() == self._contents[name], f"{act.name} {where}: {name} is another file"
        left = {path.name for path in (models / _OTHER / "partial").glob("*")}
        assert not left, f"{act.name} {where} left {left}"
        own = {path.stem for path in (models / _OTHER).iterdir()}  # a draft of the store's id is some bytes
        assert own <= {"store", "partial", "receipts"}, f"{act.name} {where} left {own}"
        with closing(sqlite3.connect(folder / "corral.db")) as database:
            ((files, number),) = database.execute("SELECT files, number FROM models").fetchall()
            ((count,),) = database.execute("SELECT count(*) FROM operations").fetchall()
            states = database.execute("SELECT status FROM operation_targets").fetchall()
        digests = {f"sha256:{hashlib.sha256(self._contents[name]).hexdigest()}" for name in names}
        assert {file["digest"] for file in json.loads(files)} == digests, f"{act.name} {where}: {files}"
        assert (number, count, states) == (1, 1, [("success",)]), f"{act.name} {where}: {(number, count, states)}"


def _is_download(request: ServedRequest) -> bool:
    """Whether libcurl asked, which downloads: it says first what it accepts. Planning has another client."""
    names = list(request.headers)
    return names.index("Accept") < names.index("Accept-Encoding")


@asynccontextmanager
async def _driver() -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    argv = [sys.executable, "-m", "chaos.pull_driver"]
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, cwd=_ROOT)
    try:
        yield process
    finally:
        process.kill()
        await process.wait()
