"""A pull of a model, killed at each of its steps: what is on the disk and in the catalogue after a restart.

Whenever the frontend and its download die, together or one of them, a frontend that starts again ends with every file
as it was promised and with the model, and leaves nothing else. Counted is what had to come over the network twice.
"""

import hashlib
import json
import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.crash_driver import CrashDriver
from chaos.round import Workshop
from tests.kit.file_server import ServedRequest
from tests.kit.gguf import LLAMA, gguf
from tests.kit.hub_server import HuggingFaceServer

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
        async with CrashDriver.open(workshop, "chaos.pull_driver") as driver:
            matrix = PullMatrix(workshop, server, driver)
            await matrix.prepare()
            for act in ACTS:
                await matrix.run(act)


class PullMatrix:
    def __init__(self, workshop: Workshop, server: HuggingFaceServer, driver: CrashDriver) -> None:
        self._workshop = workshop
        self._server = server
        self._driver = driver
        self._folder = workshop.directory
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
        steps = self._driver.steps()
        chosen = self._driver.chosen_steps(len(steps))
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
        await self._pull(act, folder, fatal=0)  # the frontend that starts again goes on to the end
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
        """Pull from nothing up to the fatal step, and return the folder that it left behind."""
        folder = self._driver.next_folder()
        folder.mkdir()
        shutil.copy(self._folder / "empty.db", folder / "corral.db")
        await self._pull(act, folder, fatal=fatal)
        return folder

    async def _pull(self, act: PullAct, folder: Path, *, fatal: int) -> None:
        await self._driver.play_up_to(
            folder,
            fatal=fatal,
            reference=act.reference.format(server=self._server.base, folder=self._folder),
            hub=self._server.base,
            takes_parent=act.takes_parent,
        )

    # Checking.

    def _check(self, folder: Path, act: PullAct, where: str) -> None:
        """The files are there and nothing else; the model is in the database once, with their digests."""
        models, names = folder / "models", self._names(act)
        files = {path.name: path for path in models.rglob("*") if path.is_file() and _OTHER not in path.parts}
        assert set(files) == set(names), f"{act.name} {where}: there are {sorted(files)}"
        for name in names:
            assert files[name].read_bytes() == self._contents[name], f"{act.name} {where}: {name} is another file"
        left = {path.name for path in (models / _OTHER / "partial").glob("*")}
        assert not left, f"{act.name} {where} left {left}"
        own = {path.stem for path in (models / _OTHER).iterdir()}  # a draft of the store's id is some bytes
        assert own <= {"store", "partial", "receipts"}, f"{act.name} {where} left {own}"
        with closing(sqlite3.connect(folder / "corral.db")) as database:
            ((recorded, number),) = database.execute("SELECT files, number FROM models").fetchall()
            ((count,),) = database.execute("SELECT count(*) FROM operations").fetchall()
            states = database.execute("SELECT status FROM operation_targets").fetchall()
        digests = {f"sha256:{hashlib.sha256(self._contents[name]).hexdigest()}" for name in names}
        assert {file["digest"] for file in json.loads(recorded)} == digests, f"{act.name} {where}: {recorded}"
        assert (number, count, states) == (1, 1, [("success",)]), f"{act.name} {where}: {(number, count, states)}"


def _is_download(request: ServedRequest) -> bool:
    """Whether libcurl asked, which downloads: it says first what it accepts. Planning has another client."""
    names = list(request.headers)
    return names.index("Accept") < names.index("Accept-Encoding")
