"""Estimates of memory against what llama.cpp told of the same models when `make bench ARGS=estimates` was run last."""

from pathlib import Path

import pytest

from bench.estimates import CASES, GOAL, Case, buffers, said_of
from bench.made_weights import write_weights

MIB = 1 << 20
RECORDED = {
    "1.1 B, grouped heads, 4k": (590.1, 88.0, 57.1),
    "1.1 B, 32k, keys and values q8_0": (590.1, 374.0, 85.1),
    "1.1 B, 16k, q4_0, batch 128": (590.1, 99.0, 17.4),
    "1.1 B, 8k, without flash attention": (590.1, 176.0, 553.1),
    "0.4 B, all heads kept, f16, 8k": (713.1, 768.0, 34.6),
    "0.6 B, 152k words, q8_0, 16k": (604.2, 1792.0, 44.6),
    "0.6 B, 152k words, as embeddings": (604.2, 224.0, 1235.7),
    "1 B, windows, 262k words, 32k": (1013.6, 150.0, 85.8),
    "8 experts, 2 at work, 8k": (619.6, 96.0, 60.1),
    "64 narrow experts, 8 at work, 16k, 4 slots": (1176, 256, 52),
    "latent keys, 16k": (481, 216, 66),
    "windows, 4 slots, batch 256": (123, 82, 19),
    "embeddings, BERT, 512": (63.8, 0.0, 7.4),
    "recurrent, 4 slots": (369.9, 14.2, 31.1),
}
"""MiB of weights, cache, and buffers for computing, of llama.cpp b11549."""


@pytest.mark.parametrize("case", [case for case in CASES if case.name in RECORDED], ids=lambda case: case.name)
def test_estimates_are_near_what_llama_cpp_took(case: Case, tmp_path: Path) -> None:
    assert case.made is not None
    write_weights(tmp_path / "made.gguf", case.made)
    said = said_of(case, tmp_path / "made.gguf").parts
    told = dict(zip(("weights", "cache", "compute"), RECORDED[case.name], strict=True))
    assert abs(sum(said.values()) / MIB / sum(told.values()) - 1) * 100 <= GOAL
    for name, size in told.items():
        assert said[name] / MIB == pytest.approx(size, rel=GOAL / 100, abs=1), name


def test_what_is_only_tried_is_not_counted() -> None:
    lines = """
    0.00.2 I load_tensors:          CPU model buffer size =     5.00 MiB
    0.00.2 I sched_reserve:        CPU compute buffer size =    57.02 MiB
    0.00.2 I common_fit_params: fitting params to free memory took 0.21 seconds
    0.03.3 I load_tensors:   CPU_Mapped model buffer size =   100.00 MiB
    0.03.3 I load_tensors:   CPU_REPACK model buffer size =    50.00 MiB
    0.04.1 I llama_context:        CPU  output buffer size =     1.00 MiB
    0.04.2 I llama_kv_cache:        CPU KV buffer size =    20.00 MiB
    0.04.2 I llama_memory_recurrent:        CPU RS buffer size =     3.00 MiB
    0.04.3 I sched_reserve:        CPU compute buffer size =     9.00 MiB
    """
    assert buffers(lines) == {"weights": 150 * MIB, "cache": 23 * MIB, "compute": 10 * MIB}
