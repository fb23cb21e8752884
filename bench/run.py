"""`run`: from an empty data directory to the first words of an answer, with one command, for every kind of reference.

The hubs are servers of the testing kit on this machine, and serve the small model that comes along: what is measured is
Corral, not a line.
"""

import asyncio
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.report import Row, Table
from bench.say import say
from bench.up import corral, environment
from corral.base.errors import ChildFailed
from tests.kit.model_hubs import ModelHubs
from tests.kit.models import QUESTION
from tests.kit.ports import lasting_port

_MEGABYTE: Final = 1e6
_WITHIN_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    first_word: float
    """Seconds until the first byte of the answer."""
    whole: float


async def run(_: float | None = None, *, schemes: frozenset[str] | None = None) -> list[Table]:
    """One row for each scheme, or for those named; a fleet is started for each, and again asked while it runs."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as name, ModelHubs(Path(name) / "hubs") as hubs:
        for scheme, reference in hubs.references.items():
            if schemes is not None and scheme not in schemes:
                continue
            say(f"run: {scheme}")
            data = Path(name) / scheme
            settings = {
                **hubs.settings,
                "CORRAL_DATA": str(data),
                "CORRAL_PORT": "0",
                "CORRAL_NATS_PORT": str(lasting_port()),
                "CORRAL_WORKERS": "1",
                "CORRAL_PROVISIONS": str(data / "none"),
            }
            before = hubs.sent
            try:
                cold = await _timed(reference, settings)
                sent = hubs.sent - before
                warm = await _timed(reference, settings)
            finally:
                await _down(settings)
            rows.append(
                {
                    "what": scheme,
                    "first word (s)": cold.first_word,
                    "whole answer (s)": cold.whole,
                    "again (s)": warm.first_word,
                    "from the hub (MB)": sent / _MEGABYTE,
                    "model (MB)": hubs.bytes / _MEGABYTE,
                    "again from the hub (MB)": (hubs.sent - before - sent) / _MEGABYTE,
                }
            )
    notes = [
        "Empty data directory: `corral run REFERENCE PROMPT --up` starts a fleet with one worker, downloads, loads,",
        "and answers. Again: the same command while that fleet runs.",
    ]
    return [Table(title="One command to an answer", rows=rows, notes=notes)]


async def _timed(reference: str, settings: Mapping[str, str]) -> Timed:
    """Run the command. ChildFailed when it ends without an answer."""
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *corral("run", reference, QUESTION, "--up"),
        env=environment(settings),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_WITHIN_SECONDS):
            first = await process.stdout.read(1)
            first_word = time.monotonic() - began
            _, complaints = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0 or not first:
        raise ChildFailed(f"corral run {reference} ended with {process.returncode}:\n{complaints.decode()}")
    return Timed(first_word=first_word, whole=time.monotonic() - began)


async def _down(settings: Mapping[str, str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *corral("down"),
        env=environment(settings),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    await process.wait()
