"""Part of `images`: the wire breaks in the middle of a pull, which is then started again."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from bench.cut_wire import CutWire
from bench.pulls import order_for, own_folder, pull
from bench.readings import MEGABYTE
from bench.report import Table, figure
from bench.sample_image import NAME, SampleImage
from bench.say import say
from corral.base.errors import CorralError
from corral.oci.errors import RegistryUnavailable

CUT_PERCENT: Final = 40
_UNFINISHED: Final = ".part"


async def cut_and_resumed(image: SampleImage, registry: str, folder: Path) -> Table:
    say(f"images: cut at {CUT_PERCENT} %, and started again")
    with own_folder(folder):
        async with CutWire(registry, cut_at=image.size * CUT_PERCENT // 100) as wire:
            return await _measure(image, wire, folder)


async def _measure(image: SampleImage, wire: CutWire, folder: Path) -> Table:
    order = order_for(f"{wire.address}/{NAME}:latest", folder)
    hasty = msgspec.structs.replace(order, network=replace(order.network, attempts=1))
    try:
        await pull(hasty)
    except RegistryUnavailable:
        first = wire.fetched.total()
    else:
        raise CorralError("the pull did not notice that its connections were cut")
    finished = [layer.digest for layer in image.layers if (folder / "cache" / _file_of(layer.digest)).exists()]
    begun = len(list((folder / "cache").glob(f"*{_UNFINISHED}")))
    wire.mend()
    again = await pull(order)
    second = wire.fetched.total()
    twice = sum(digest in wire.fetched for digest in finished)
    rows = [
        figure("fetched until the cut", first / MEGABYTE, "MB"),
        figure("layers that were whole by then", len(finished), ""),
        figure("layers that were not, and had begun", begun, ""),
        figure("fetched the second time", second / MEGABYTE, "MB"),
        figure("whole layers that were fetched again", twice, "", at_most=0),
        figure("fetched in vain", max(0, first + second - image.size) / MEGABYTE, "MB"),
        figure("the second time, pull and unpack", again.seconds, "s"),
    ]
    size = f"{image.size / MEGABYTE:,.0f} MB"
    return Table(title=f"An image of {size}, cut at {CUT_PERCENT} % and started again", rows=rows)


def _file_of(digest: str) -> str:
    return digest.partition(":")[2]
