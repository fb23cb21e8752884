"""What Corral says that a model takes in memory, held against what llama.cpp allocates for it.

llama.cpp tells the sizes of its buffers when it loads a model: of the weights, of the cache, and of what it computes
in. Beside that stands what the kernel counts for the process. Weights are read into memory of its own here: where they
are mapped, llama.cpp counts those twice that it also keeps in another order, and the kernel those that were touched.
"""

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from bench.made_weights import MadeModel, write_weights
from bench.report import MISSED, REACHED, Cell, Row, Table
from bench.say import say
from corral.frontend.models.decide.model import ModelSpec, load_options, read_model
from corral.frontend.models.decide.needs import fitted, needs_of, settings_of
from corral.frontend.models.decide.stored import WeightFile
from corral.hubs.estimate import estimate_memory
from corral.hubs.gguf import read_gguf_file
from corral.hubs.weight_shape import WeightShape
from tests.kit.backends import BACKENDS
from tests.kit.models import chat_model

GOAL: Final = 10.0
"""Percent by which an estimate may be wrong, either way."""
_MIB: Final = 1 << 20
_SECONDS: Final = 300.0
_TRIED: Final = "fitting params to free memory took"
_BUFFER: Final = re.compile(r"(model|KV|RS|compute|output) buffer size\s*=\s*([\d.]+) MiB")
_PARTS: Final = {"model": "weights", "KV": "cache", "RS": "cache", "compute": "compute", "output": "compute"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, and how it is loaded."""

    name: str
    made: MadeModel | None = None
    """None: the chat model of the set-up."""
    config: Mapping[str, object] = field(default_factory=dict)


_ONE: Final = MadeModel()
_QWEN: Final = MadeModel(
    architecture="qwen3", width=1024, blocks=28, heads=16, kv_heads=8, head_width=128, feed_forward=3072,
    vocabulary=151_936, kind="q8_0", is_tied=True,
)  # fmt: skip
CASES: Final = (
    Case(name="chat model of the set-up, 4 slots", config={"context_size": 8192, "options": ["parallel:4"]}),
    Case(name="1.1 B, grouped heads, 4k", made=_ONE, config={"context_size": 4096}),
    Case(name="1.1 B, 32k, keys and values q8_0", made=_ONE,
         config={"context_size": 32_768, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}),
    Case(name="1.1 B, 16k, q4_0, batch 128", made=_ONE,
         config={"context_size": 16_384, "cache_type_k": "q4_0", "cache_type_v": "q4_0", "parameters.batch": 128}),
    Case(name="1.1 B, 8k, without flash attention", made=_ONE,
         config={"context_size": 8192, "flash_attention": "off"}),
    Case(name="0.4 B, all heads kept, f16, 8k",
         made=MadeModel(width=1024, blocks=24, heads=16, kv_heads=16, feed_forward=2816, kind="f16"),
         config={"context_size": 8192}),
    Case(name="0.6 B, 152k words, q8_0, 16k", made=_QWEN, config={"context_size": 16_384}),
    Case(name="0.6 B, 152k words, as embeddings", made=_QWEN, config={"context_size": 2048, "embeddings": True}),
    Case(name="1 B, windows, 262k words, 32k",
         made=MadeModel(architecture="gemma3", width=1152, blocks=26, heads=4, kv_heads=1, head_width=256,
                        feed_forward=6912, vocabulary=262_144, kind="q8_0", is_tied=True, window=512),
         config={"context_size": 32_768}),
    Case(name="8 experts, 2 at work, 8k",
         made=MadeModel(width=1024, blocks=12, heads=16, kv_heads=4, feed_forward=3584, experts=8),
         config={"context_size": 8192}),
    Case(name="64 narrow experts, 8 at work, 16k, 4 slots",
         made=MadeModel(architecture="qwen3moe", width=1024, blocks=8, heads=16, kv_heads=4, head_width=128,
                        feed_forward=512, experts=64, experts_used=8, vocabulary=151_936, kind="q8_0"),
         config={"context_size": 16_384, "options": ["parallel:4"]}),
    Case(name="latent keys, 16k",
         made=MadeModel(architecture="deepseek2", width=1024, blocks=12, heads=16, kv_heads=1, head_width=128,
                        feed_forward=2816, latent=512, kind="f16"),
         config={"context_size": 16_384}),
    Case(name="windows, 4 slots, batch 256",
         made=MadeModel(architecture="gemma3", width=640, blocks=18, heads=4, kv_heads=1, head_width=256,
                        feed_forward=2048, kind="q8_0", is_tied=True, window=512),
         config={"context_size": 16_384, "parameters.batch": 256, "options": ["parallel:4"]}),
    Case(name="embeddings, BERT, 512",
         made=MadeModel(architecture="bert", width=384, blocks=12, heads=12, kv_heads=12, head_width=32,
                        feed_forward=1536, vocabulary=30_522, context=512, kind="f16"),
         config={"context_size": 512, "embeddings": True}),
    Case(name="recurrent, 4 slots",
         made=MadeModel(architecture="mamba", width=1024, blocks=24, heads=0, kv_heads=0, feed_forward=0, state=16,
                        is_tied=True, kind="f16"),
         config={"context_size": 8192, "options": ["parallel:4"]}),
)  # fmt: skip


async def estimates(_: float | None = None, *, cases: Sequence[Case] = CASES) -> list[Table]:
    """One row for each case: what was said, what llama.cpp told, and the error."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            say(case.name)
            rows.append(await _measured(case, Path(folder)))
    notes = (
        "MiB. told: the sum of the buffers that llama.cpp says it has; error: of what was said to that.",
        "resident: what the kernel counts for the process just after loading, when it has not touched all buffers yet;",
        "said for it: buffers, program and words, as Corral reserves them.",
    )
    return [Table(title="memory of models: estimated, and taken by llama.cpp", rows=rows, notes=notes)]


async def _measured(case: Case, folder: Path) -> Row:
    file = chat_model() if case.made is None else folder / "made.gguf"
    if case.made is not None:
        write_weights(file, case.made)
    said = said_of(case, file)
    told, resident = await _load(load_options(said.spec, models=file.parent, threads=2))
    error = 100 * (sum(said.parts.values()) / sum(told.values()) - 1)
    row: dict[str, Cell] = {"what": case.name}
    for name, value in said.parts.items():
        row[name], row[f"{name} told"] = round(value / _MIB), round(told[name] / _MIB)
    row |= {"error %": round(error, 1), "resident": round(resident / _MIB), "said for it": round(said.ram / _MIB)}
    return {**row, "goal": f"≤ {GOAL:.0f}", "verdict": REACHED if abs(error) <= GOAL else MISSED}


class Said(NamedTuple):
    """What Corral says before a model is loaded, in bytes."""

    spec: ModelSpec
    parts: Mapping[str, int]
    """Of the buffers that llama.cpp tells the sizes of."""
    ram: int


def said_of(case: Case, file: Path) -> Said:
    spec = read_model(_config(case, file.name), source="")
    weights = WeightFile(path=file.name, size=file.stat().st_size, shape=read_gguf_file(file).shape)
    shape = fitted(weights.shape or WeightShape(), weights.size)
    need = estimate_memory(shape, settings_of(load_options(spec, models=file.parent, threads=2)))
    parts = {"weights": need.weights, "cache": need.cache, "compute": need.compute}
    return Said(spec, parts, needs_of(spec, [weights]).ram)


def _config(case: Case, model: str) -> dict[str, object]:
    dotted = {key.partition(".")[2]: value for key, value in case.config.items() if "." in key}
    plain = {key: value for key, value in case.config.items() if "." not in key}
    return {"name": "made", "backend": "llama-cpp", "mmap": False, "parameters": {"model": model, **dotted}, **plain}


async def _load(options: Mapping[str, object]) -> tuple[dict[str, float], int]:
    """Load it in a process of its own: bytes of llama.cpp's buffers by what they are for, and what is resident."""
    paths = os.pathsep.join(str(BACKENDS / name) for name in ("sdk", "llama_cpp"))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        Path(__file__).with_name("llama_process.py"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    )
    try:
        async with asyncio.timeout(_SECONDS):
            answer, log = await process.communicate(json.dumps(options).encode() + b"\n")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError("llama.cpp could not load it:\n" + log.decode(errors="replace")[-2000:])
    return buffers(log.decode(errors="replace")), json.loads(answer)["resident"]


def buffers(log: str) -> dict[str, float]:
    """Bytes of what llama.cpp says it allocates, by what it is for. First it tries what fits, and tells that too."""
    found = {"weights": 0.0, "cache": 0.0, "compute": 0.0}
    for kind, size in _BUFFER.findall(log.rpartition(_TRIED)[2]):
        found[_PARTS[kind]] += float(size) * _MIB
    return found
