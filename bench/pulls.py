"""Pulls as an agent has them done: in a process of their own, with the settings that every worker has by default."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.readings import peak_of
from corral.oci.config import ImagesConfig, make_order
from corral.oci.orders import PullOrder, PullResult
from corral.oci.puller import Puller


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    seconds: float
    peak: int
    """The most memory that was seen, in bytes."""
    result: PullResult


@contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    """There for the block only: gigabytes are not left lying about until the bench is done."""
    folder.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(folder)


def order_for(reference: str, folder: Path) -> PullOrder:
    """What an agent would order."""
    order, _ = make_order(ImagesConfig(), [reference], target=folder / "target", cache=folder / "cache")
    return order


async def pull(order: PullOrder) -> Pulled:
    """ImageError when it fails."""
    peak = 0
    began = time.monotonic()
    async with Puller(order, environment={"PATH": os.defpath}) as puller:
        async for _ in puller.progress():
            with contextlib.suppress(OSError, KeyError):
                peak = max(peak, peak_of(puller.pid or 0))
        result = await puller.result()
    return Pulled(seconds=time.monotonic() - began, peak=peak, result=result)


async def pull_and_forget(
    reference: str, folder: Path, change: Callable[[PullOrder], PullOrder] = lambda order: order
) -> Pulled:
    """Into a folder of its own, which is gone afterwards."""
    with own_folder(folder):
        return await pull(change(order_for(reference, folder)))


def not_durable(order: PullOrder) -> PullOrder:
    return msgspec.structs.replace(order, is_durable=False)
