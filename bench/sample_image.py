"""A backend's image of any size, in a real registry on loopback: a few small layers and large ones, half of it
incompressible, half of it text, in large and in small files. It can be installed and started.
"""

import asyncio
import base64
import io
import random
import sys
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.readings import MEGABYTE
from corral.oci.manifests import OCI_LAYER_GZIP, Descriptor, this_platform
from tests.kit.backends import BACKENDS
from tests.kit.docker_registry import DockerRegistry
from tests.kit.images import gzipped

NAME: Final = "backends/bench"
PERCENT: Final = (5, 15, 20, 35, 15, 10)
"""How large the layers are, in their order: of a pull that breaks off halfway, some are whole."""
_SMALL_FILE: Final = 20_000
_LARGE_FILE: Final = 8 * MEGABYTE
_RUN: Final = f'#!/bin/sh\nexec "{sys.executable}" "$(dirname "$0")/backend.py" "$@"\n'
_SERVE: Final = """
from corral_backend_sdk import Backend, serve

class Idle(Backend):
    name = "idle"

serve(Idle)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleImage:
    """What was pushed. Sizes in bytes."""

    reference: str
    layers: Sequence[Descriptor]
    unpacked: int

    @property
    def size(self) -> int:
        return sum(layer.size for layer in self.layers)


async def push_sample(registry: DockerRegistry, megabytes: int) -> SampleImage:
    """So many megabytes of compressed layers. One at a time is in memory."""
    layers, unpacked = [], 0
    for number, percent in enumerate(PERCENT):
        plain = await asyncio.to_thread(_layer, number, megabytes * MEGABYTE * percent // 100)
        unpacked += len(plain)
        packed = await asyncio.to_thread(gzipped, plain, level=1)
        layers.append(await asyncio.to_thread(registry.push_blob, NAME, packed, OCI_LAYER_GZIP))
    await asyncio.to_thread(registry.push_layers, NAME, layers, platform=this_platform())
    return SampleImage(reference=registry.reference(NAME), layers=layers, unpacked=unpacked)


def _layer(number: int, size: int) -> bytes:
    """About so many bytes when compressed: half of it random, half of it text of which a quarter is nothing new."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in (*(_programs() if number == 0 else ()), *_contents(number, size)):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _programs() -> Iterable[tuple[str, bytes]]:
    """The backend with its SDK, as every image has it: a confined process cannot read the checkout."""
    yield "run.sh", _RUN.encode()
    yield "backend.py", _SERVE.encode()
    sdk = BACKENDS / "sdk"
    for file in sorted(sdk.glob("corral_backend_sdk/**/*.py")):
        yield str(file.relative_to(sdk)), file.read_bytes()


def _contents(number: int, size: int) -> Iterable[tuple[str, bytes]]:
    seeded = random.Random(number)
    made = 0
    while made < size:
        is_small = made < size // 10
        content = seeded.randbytes(min(_SMALL_FILE if is_small else _LARGE_FILE, size - made))
        half = len(content) // 2
        text = base64.encodebytes(content[half:])
        yield str(Path(f"layer-{number}") / str(made // _LARGE_FILE) / str(made)), content[:half] + text
        made += len(content)
