"""`staging`: how long a frontend takes to bring a file to a worker, against `curl -T` into the same file server.

Both send the hash along, and the worker checks it. A frontend asks first what is there; it also has to know the hash.
That is told apart: it is computed once per file, and not at all for one that was pulled. Corral's workers take a file
while its hash is computed; LocalAI's need the hash first, so both are measured. Processor time is told beside, of
sender and worker together: on a busy machine it says more than seconds do.

The second staging of the same file sends nothing. Through an object storage the file goes twice over the network, into
a real S3 server and out of it, and for every further node only the second time. The order changes from round to round,
and memory is full before: see `bench/files.py`.
"""

import asyncio
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from bench.files import Upload, curl, ended_children_seconds, fill_memory, make_source
from bench.lone_worker import HOST, NODE, TOKEN, LoneWorker, lone_worker
from bench.readings import MEGABYTE, processor_seconds
from bench.report import Row, Table, figure
from bench.say import say
from corral.base.clock import SystemClock
from corral.base.ids import NodeId
from corral.files.file_peer import FilePeer
from corral.files.s3_bucket import open_bucket
from corral.frontend.models.local_files import LocalFiles
from corral.frontend.nodes.node_storage import NodeStorage
from corral.frontend.serving.staging.http_carrier import HttpCarrier
from corral.frontend.serving.staging.object_carrier import ObjectCarrier
from corral.frontend.serving.staging.service import Staging, StagingWatch
from tests.kit.s3 import S3Server

SIZE: Final = 1024**3
ROUNDS: Final = 5
AGAINST_CURL: Final = 0.80
_FILE: Final = "weights.gguf"
_NODE: Final = NodeId("worker")


@dataclass(slots=True)
class Seconds:
    curl: list[float] = field(default_factory=list)
    meanwhile: list[float] = field(default_factory=list)
    """With a hash that nobody knew, and that is computed while the file is sent."""
    before: list[float] = field(default_factory=list)
    """With a hash that nobody knew, and that is computed first."""
    known: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    sent_again: int = 0
    stored: list[float] = field(default_factory=list)
    """Through the storage, which did not have the file."""
    fetched: list[float] = field(default_factory=list)
    """From the storage, which had it."""
    fetched_again: list[float] = field(default_factory=list)
    processor: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Processor time of sender and worker, by contender."""


async def staging(size: int | None = None, *, rounds: int = ROUNDS) -> Table:
    """The rounds are interleaved, so that all meet the same moods of the disk."""
    size = size or SIZE
    took = Seconds()
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as name:
        folder = Path(name)
        models = folder / "frontend"
        models.mkdir()
        digest = await asyncio.to_thread(make_source, models / _FILE, size)
        os.utime(models / _FILE, (1, 1))
        await asyncio.to_thread(fill_memory, folder / "filler", (4 * rounds + 1) * size)
        upload = Upload(source=models / _FILE, size=size, digest=digest, send=curl)
        async with lone_worker(folder) as worker:
            for number in range(rounds):
                say(f"staging: round {number + 1} of {rounds}")
                await _round(number, worker, upload, took)
        say("staging: through an object storage")
        with S3Server(volumes=40, volume_megabytes=max(64, 3 * size // 40 // 1024**2)) as server:
            await _through_storage(folder / "objects", server, upload, took)
    return Table(
        title=f"Bringing a file of {size / MEGABYTE:,.0f} MB to a worker",
        rows=_rows(size, took),
        notes=[
            f"Medians of {rounds} rounds, interleaved, with sync before each; sender and worker share the processors."
        ],
    )


def _over_http(models: Path, file_server: Callable[[NodeId], Awaitable[FilePeer | None]]) -> Staging:
    files = LocalFiles(models)
    return Staging(models, files, [HttpCarrier(files, file_server)])


async def _round(number: int, worker: LoneWorker, upload: Upload, took: Seconds) -> None:
    async def of_corral(_: NodeId) -> FilePeer:
        return FilePeer(address=f"{HOST}:{worker.http_port}", token=TOKEN, takes_late_digests=True)

    async def of_localai(_: NodeId) -> FilePeer:
        return FilePeer(address=f"{HOST}:{worker.http_port}", token=TOKEN)

    models = upload.source.parent
    sender = _over_http(models, of_corral)

    async def by_curl() -> None:
        url = f"http://{HOST}:{worker.http_port}/v1/files/models/curl-{number}/{_FILE}"
        took.curl.append(await upload.send(upload.source, url, upload.headers))

    async def meanwhile() -> None:
        took.meanwhile.append((await _bring(_over_http(models, of_corral), upload, f"meanwhile-{number}"))[0])

    async def before() -> None:
        took.before.append((await _bring(_over_http(models, of_localai), upload, f"before-{number}"))[0])

    async def known() -> None:
        took.known.append((await _bring(sender, upload, f"known-{number}"))[0])

    contenders = [by_curl, meanwhile, before, known]
    turn = number % len(contenders)
    for contender in contenders[turn:] + contenders[:turn]:
        if contender is known:
            await _bring(sender, upload, "curl-0" if number else "warm-up")  # so that the hash is known
        else:
            await asyncio.to_thread(_forget, models)
        await asyncio.to_thread(os.sync)
        used = _processor_seconds(worker)
        await contender()
        took.processor[contender.__name__].append(_processor_seconds(worker) - used)
    again, sent = await _bring(sender, upload, f"known-{number}")
    took.again.append(again)
    took.sent_again += sent


async def _through_storage(folder: Path, server: S3Server, upload: Upload, took: Seconds) -> None:
    """The storage gets the file for the first model, has it for the second, and the third staging needs nothing."""
    config = server.config()
    settings = {
        "CORRAL_STORAGE_URL": config.url,
        "CORRAL_STORAGE_ACCESS_KEY": config.access_key,
        "CORRAL_STORAGE_SECRET_KEY": config.secret_key,
    }

    async def admitted(_: NodeId) -> None: ...

    async def fetches_by_digest(_: NodeId) -> bool:
        return True

    models = upload.source.parent
    files = LocalFiles(models)
    async with lone_worker(folder, settings) as worker, open_bucket(config) as bucket:
        asked = NodeStorage(worker.bus, admitted)
        sender = Staging(models, files, [ObjectCarrier(files, bucket, asked, fetches_by_digest, SystemClock())])
        for times, model in ((took.stored, "first"), (took.fetched, "second"), (took.fetched_again, "second")):
            await asyncio.to_thread(os.sync)
            seconds, sent = await _bring(sender, upload, model, NODE)
            times.append(seconds)
            took.sent_again += sent if times is not took.stored else 0


def _processor_seconds(worker: LoneWorker) -> float:
    """Processor time of the worker and of all senders: this process, and the children that have ended."""
    return processor_seconds(worker.process.pid) + time.process_time() + ended_children_seconds()


def _forget(models: Path) -> None:
    """Have no hash left from before."""
    for receipt in (models / ".corral" / "receipts").glob("*"):
        receipt.unlink()


async def _bring(sender: Staging, upload: Upload, model: str, node: NodeId = _NODE) -> tuple[float, int]:
    """Seconds, and bytes that were sent."""
    watch = StagingWatch(SystemClock())
    began = time.perf_counter()
    await sender.bring(model, {"ModelFile": str(upload.source)}, node, watch)
    return time.perf_counter() - began, watch.count.sent_bytes


def _processor_rows(used: Mapping[str, float]) -> list[Row]:
    names = {"by_curl": "curl", "known": "hash known", "meanwhile": "hash computed meanwhile"}
    return [
        *(figure(f"processor time of sender and worker, {name}", used[key], "s") for key, name in names.items()),
        figure("processor time with a known hash against curl", used["known"] / used["by_curl"], "×"),
    ]


def _rows(size: int, took: Seconds) -> list[Row]:
    against = median(took.curl)
    return [
        figure("curl -T into the worker", against, "s"),
        figure("staging, hash known", median(took.known), "s"),
        figure("staging, hash computed meanwhile", median(took.meanwhile), "s"),
        figure("staging, hash computed before, as for LocalAI's workers", median(took.before), "s"),
        figure("staging with a known hash against curl", median(took.known) / against, "×", at_most=AGAINST_CURL),
        figure("staging with a hash that is computed meanwhile against curl", median(took.meanwhile) / against, "×"),
        figure("staging with a hash that is computed before against curl", median(took.before) / against, "×"),
        *_processor_rows({contender: median(seconds) for contender, seconds in took.processor.items()}),
        figure("speed with a known hash", size / median(took.known) / MEGABYTE, "MB/s"),
        figure("the second staging of the same file", median(took.again) * 1000, "ms"),
        figure("through an S3 server that has nothing of it, hash known", median(took.stored), "s"),
        figure("from an S3 server that has it, to another node", median(took.fetched), "s"),
        figure("the second staging through the S3 server", median(took.fetched_again) * 1000, "ms"),
        figure("bytes that second stagings send", took.sent_again, "B", at_most=0),
    ]
