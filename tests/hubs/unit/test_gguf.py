"""What a GGUF file says about itself is read by ranges, and no claim of a file is believed before it is bounded."""

import contextlib
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.hubs.gguf import ByteRange, GgufFacts, GgufKind, GgufProblem, read_gguf, read_gguf_file
from tests.kit.gguf import LLAMA, Value, gguf, tensor, text


def read(content: bytes, *, size: int | None = None) -> tuple[GgufFacts, list[ByteRange]]:
    reading, asked = read_gguf(len(content) if size is None else size), []
    wanted = next(reading)
    while True:
        asked.append(wanted)
        try:
            wanted = reading.send(content[wanted.offset : wanted.offset + wanted.size])
        except StopIteration as end:
            return end.value, asked


def test_a_chat_model_says_what_is_needed_to_run_it() -> None:
    facts, asked = read(gguf(tensor("a", 32, 4, kind=2), **LLAMA, tokenizer__chat_template="{{ messages }}"))
    assert (facts.kind, facts.name, facts.quantisation) == (GgufKind.CHAT, "A Llama", "Q4_K_M")
    assert (facts.context_length, facts.shape.context, facts.shape.heads, facts.shape.head_width) == (
        8192,
        8192,
        32,
        128,
    )
    assert (facts.parameters, facts.shape.weights) == (128, 4 * 18)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [
        ({"general__architecture": "llama"}, GgufKind.COMPLETION),
        ({"general__architecture": "llama", "tokenizer__chat_template": "x"}, GgufKind.CHAT),
        ({"general__architecture": "bert"}, GgufKind.EMBEDDING),
        ({"general__architecture": "qwen3", "qwen3__pooling_type": 3}, GgufKind.EMBEDDING),
        ({"general__architecture": "qwen3", "qwen3__pooling_type": 0}, GgufKind.COMPLETION),
        ({"general__architecture": "bert", "bert__pooling_type": 4}, GgufKind.RERANK),
        ({"general__architecture": "clip", "clip__has_vision_encoder": True}, GgufKind.PROJECTOR),
        ({"general__architecture": "llama", "general__type": "adapter"}, GgufKind.ADAPTER),
    ],
)
def test_the_metadata_tell_what_can_be_asked(metadata: dict[str, Value], kind: GgufKind) -> None:
    facts, _ = read(gguf(**metadata))
    assert facts.kind is kind


def test_the_words_of_a_tokenizer_are_counted_and_not_kept() -> None:
    facts, _ = read(gguf(general__architecture="llama", tokenizer__ggml__tokens=["a", "bc", "def"]))
    assert facts.shape.vocabulary == 3


@pytest.mark.parametrize("value", ["x" * 500_000 + "😀", list(range(10_000, 11_024))], ids=["texts", "lists"])
def test_a_header_takes_little_memory_whatever_it_holds(value: Value) -> None:
    """A megabyte of it could become many: each character of a text up to four bytes, each number an object."""
    values = {f"x__{number}": value for number in range(24 if isinstance(value, str) else 600)}
    content = gguf(general__architecture="llama", **values)
    tracemalloc.start()
    try:
        facts, _ = read(content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert facts.architecture == "llama"
    assert peak < 12 << 20


def test_a_template_is_kept_whole() -> None:
    template = "{{ message }}" * 20_000
    assert read(gguf(general__architecture="llama", tokenizer__chat_template=template))[0].chat_template == template


def test_a_long_header_is_read_in_windows_and_each_byte_once() -> None:
    words = [f"word number {number}" for number in range(200_000)]
    content = gguf(general__architecture="llama", tokenizer__ggml__tokens=words, tokenizer__chat_template="x")
    facts, asked = read(content)
    assert facts.kind is GgufKind.CHAT
    assert len(asked) > 3
    assert sum(one.size for one in asked) <= len(content) + 100 * len(asked)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"PK\x03\x04" + bytes(100), "does not begin like a GGUF file"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version is 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "claims 1152921504606846976 keys"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "1152921504606846976 tensors"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62), "a key claims"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IQ", 8, 1 << 40),
            "the value of 'a' claims",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 8, 1 << 50), "list 'a' claims"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 9, 1), "lists cannot hold"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<I", 77), "unknown type 77"),
        (gguf(general__name="x"), "does not say its architecture"),
        (gguf(tensor("a", 1 << 40, 1 << 40), general__architecture="x"), "claims 1208925819614629174706176 elements"),
        (gguf(tensor("a", 1 << 20), general__architecture="x"), "cut off"),
        (gguf(tensor("a", *[1] * 9), general__architecture="x"), "claims 9 dimensions"),
    ],
)
def test_a_file_that_lies_is_refused_with_what_it_claims(content: bytes, problem: str) -> None:
    with pytest.raises(GgufProblem, match=problem.replace("(", r"\(")):
        read(content + bytes(64))


def test_a_file_that_is_cut_anywhere_in_its_header_is_refused() -> None:
    content = gguf(tensor("a", 4), **LLAMA)[:-4096]
    for size in range(len(content)):
        with pytest.raises(GgufProblem):
            read(content[:size])


def test_a_server_that_sends_less_than_it_said_is_noticed() -> None:
    content = gguf(**LLAMA)
    with pytest.raises(GgufProblem, match="cut off"):
        read(content[:100], size=len(content))


def test_a_file_of_the_disk_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(**LLAMA))
    assert read_gguf_file(path).architecture == "llama"


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 1 << 40))
def test_arbitrary_bytes_end_in_facts_or_a_problem(content: bytes, size: int) -> None:
    with contextlib.suppress(GgufProblem):
        read(b"GGUF" + struct.pack("<I", 3) + content, size=size)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_changed_byte_ends_in_facts_or_a_problem(data: st.DataObject) -> None:
    content = bytearray(gguf(tensor("a", 4, 4), **LLAMA, tokenizer__ggml__tokens=["a", "b"]))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 4097))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(GgufProblem):
        read(bytes(content))
