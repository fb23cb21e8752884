"""Reads what a GGUF file says about itself: its metadata and the sizes of its tensors, never the tensors.

The file may be on a disk or behind ranged HTTP, and may be hostile. So reading is a generator without I/O: it asks for
ranges of bytes and is sent them, and it bounds every length, count and sum before it acts on it.
"""

import struct
from collections.abc import Generator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from corral.base.errors import InvalidInput
from corral.base.values import PartlyPrinted
from corral.hubs.weight_shape import MetadataValue, TensorSizes, WeightShape, number_at, shape_of

WINDOW: Final = 1 << 20
"""Bytes that are asked for at once. A header has a few to 20 MB, nearly all of it the words of the tokenizer."""
_MOST_HEADER: Final = 192 << 20
_MOST_KEYS: Final = 20_000
_MOST_TENSORS: Final = 200_000
_LONGEST_NAME: Final = 1024
_LONGEST_TEXT: Final = 4 << 20
_KEPT_TEXT: Final = 256
_KEPT_TEMPLATE: Final = 512 << 10
_CHAT_TEMPLATE: Final = "tokenizer.chat_template"
_KEPT_NUMBERS: Final = 1 << 16
"""Elements of all lists that are kept. Models have a few lists with an element for each layer."""
_MOST_ELEMENTS: Final = 1 << 26
_MOST_WORDS: Final = 1 << 22
"""Elements of a list of texts, each of which has to be looked at. The largest vocabularies have a sixteenth of it."""
_MOST_DIMENSIONS: Final = 8
_LARGEST_TENSOR: Final = 1 << 48

_FIXED: Final[Mapping[int, struct.Struct]] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_TEXT: Final = 8
_ARRAY: Final = 9
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_VERSIONS: Final = (2, 3)

_BLOCKS: Final[Mapping[int, tuple[int, int]]] = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip
"""Elements and bytes of one block, by the type of a tensor."""
_FILE_TYPES: Final[Mapping[int, str]] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip
_EMBEDDING: Final = frozenset(
    ("bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "t5encoder")
)
_RANKS: Final = 4
"""The value of `pooling_type` of models that rank documents."""


class GgufKind(StrEnum):
    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    PROJECTOR = "projector"
    """Turns pictures or sounds into tokens of another model."""
    ADAPTER = "adapter"
    """Changes another model (LoRA); it cannot be asked alone."""


class ByteRange(NamedTuple):
    offset: int
    size: int


class GgufFacts(PartlyPrinted, frozen=True, kw_only=True):
    """What one file says about itself. Zero and empty where it says nothing."""

    unprinted = ("chat_template", "shape")

    architecture: str
    name: str = ""
    licence: str = ""
    quantisation: str = ""
    kind: GgufKind = GgufKind.COMPLETION
    context_length: int = 0
    chat_template: str = ""
    hears: bool = False
    parameters: int = 0
    """In this file only, where the model is split; so also in its shape."""
    shape: WeightShape = msgspec.field(default_factory=WeightShape)


class GgufProblem(InvalidInput):
    """The file is not a GGUF file that can be used."""

    code = "unusable_gguf"

    def __init__(self, problem: str) -> None:
        super().__init__("", problem)


GgufReading = Generator[ByteRange, bytes, GgufFacts]


def read_gguf(size: int) -> GgufReading:
    """Ask for ranges until the header is read. `size` is that of the file. GgufProblem when it cannot be used.

    A range is answered with exactly as many bytes; fewer mean that the file ends there.
    """
    cursor = _Cursor(size)
    magic = yield from cursor.take(8)
    if magic[:4] != b"GGUF":
        raise GgufProblem(f"it does not begin like a GGUF file, but with {magic[:4]!r}")
    (version,) = _U32.unpack(magic[4:])
    if version not in _VERSIONS:
        swapped = int.from_bytes(magic[4:], "big")
        kind = "it is for big-endian machines" if swapped in _VERSIONS else f"its version is {version}, not 2 or 3"
        raise GgufProblem(kind)
    tensors = yield from cursor.number(_U64)
    keys = yield from cursor.number(_U64)
    if keys > _MOST_KEYS or tensors > _MOST_TENSORS:
        raise GgufProblem(f"it claims {keys} keys and {tensors} tensors; {_MOST_KEYS} and {_MOST_TENSORS} are the most")
    metadata = yield from _read_metadata(cursor, keys)
    sizes = yield from _read_tensors(cursor, tensors)
    if sizes.bytes > size:
        raise GgufProblem(f"its tensors have {sizes.bytes} bytes, and the file only {size}: it is cut off")
    return _facts(metadata, sizes)


def read_gguf_file(path: Path) -> GgufFacts:
    """Read a file of the disk. Blocks; OSError as the disk fails."""
    with path.open("rb") as file:
        reading = read_gguf(path.stat().st_size)
        span = next(reading)
        while True:
            file.seek(span.offset)
            try:
                span = reading.send(file.read(span.size))
            except StopIteration as end:
                facts: GgufFacts = end.value
                return facts


class _Cursor:
    """A window over the file that moves forward."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._start = 0
        self._window = b""
        self.at = 0

    def take(self, size: int) -> Generator[ByteRange, bytes, bytes]:
        begin = self.at - self._start
        if begin + size > len(self._window):
            yield from self._fetch(size)
            begin = 0
        self.at += size
        return self._window[begin : begin + size]

    def number(self, form: struct.Struct) -> Generator[ByteRange, bytes, int]:
        content = yield from self.take(form.size)
        (value,) = form.unpack(content)
        return int(value)

    def skip(self, size: int) -> None:
        self._check(size)
        self.at += size

    def _check(self, size: int) -> None:
        if self.at + size > self._size:
            raise GgufProblem(f"it ends after {self._size} bytes, in the middle of its header: it is cut off")
        if self.at + size > _MOST_HEADER:
            raise GgufProblem(f"its header has more than {_MOST_HEADER} bytes")

    def _fetch(self, size: int) -> Generator[ByteRange, bytes, None]:
        self._check(size)
        size_to_read = min(max(size, WINDOW), self._size - self.at)
        self._window = yield ByteRange(self.at, size_to_read)
        self._start = self.at
        if len(self._window) < size_to_read:
            raise GgufProblem(f"it ends after {self._start + len(self._window)} bytes: it is cut off")

    def text(self, longest: int, name: str) -> Generator[ByteRange, bytes, str]:
        length = yield from self.number(_U64)
        if length > longest:
            raise GgufProblem(f"{name} claims {length} bytes; {longest} are the most")
        content = yield from self.take(length)
        return content.decode("utf-8", "replace")

    def skip_texts(self, count: int) -> Generator[ByteRange, bytes, None]:
        """Pass over texts: vocabularies have hundreds of thousands, so those inside of the window cost no more than a
        look at their lengths."""
        remaining = count
        while remaining := remaining - self._skip_inside(remaining):
            length = yield from self.number(_U64)
            if length > _LONGEST_TEXT:
                raise GgufProblem(f"an element of a list claims {length} bytes; {_LONGEST_TEXT} are the most")
            self.skip(length)
            remaining -= 1

    def _skip_inside(self, most: int) -> int:
        """Pass over texts that are in the window from beginning to end; how many they were."""
        window, at, count = self._window, self.at - self._start, 0
        last = len(window) - _U64.size
        while count < most and at <= last:
            end = at + _U64.size + int(_U64.unpack_from(window, at)[0])
            if end > len(window):
                break
            at, count = end, count + 1
        self.at = self._start + at
        return count


def _read_metadata(cursor: _Cursor, count: int) -> Generator[ByteRange, bytes, dict[str, MetadataValue]]:
    metadata: dict[str, MetadataValue] = {}
    kept = 0
    for _ in range(count):
        key = yield from cursor.text(_LONGEST_NAME, "a key")
        kind = yield from cursor.number(_U32)
        if kind == _TEXT:
            value = yield from cursor.text(_LONGEST_TEXT, f"the value of {key[:80]!r}")
            metadata[key] = value[: _KEPT_TEMPLATE if key == _CHAT_TEMPLATE else _KEPT_TEXT]
        elif kind == _ARRAY:
            elements = yield from _read_array(cursor, key, room=_KEPT_NUMBERS - kept)
            kept += sum(len(values) for values in elements.values() if isinstance(values, list))
            metadata |= elements
        elif (form := _FIXED.get(kind)) is not None:
            content = yield from cursor.take(form.size)
            (metadata[key],) = form.unpack(content)
        else:
            raise GgufProblem(f"the value of {key[:80]!r} has the unknown type {kind}")
    return metadata


def _read_array(cursor: _Cursor, key: str, *, room: int) -> Generator[ByteRange, bytes, dict[str, MetadataValue]]:
    """The length of a list, as `key#`, and short lists of numbers themselves while there is room for them."""
    kind = yield from cursor.number(_U32)
    count = yield from cursor.number(_U64)
    if count > (most := _MOST_WORDS if kind == _TEXT else _MOST_ELEMENTS):
        raise GgufProblem(f"the list {key[:80]!r} claims {count} elements; {most} are the most")
    values: dict[str, MetadataValue] = {f"{key}#": count}
    form = _FIXED.get(kind)
    if kind == _TEXT:
        yield from cursor.skip_texts(count)
    elif form is None:
        raise GgufProblem(f"the list {key[:80]!r} has elements of the type {kind}, which lists cannot hold")
    elif count <= min(1024, room):
        content = yield from cursor.take(form.size * count)
        values[key] = [int(value) for (value,) in form.iter_unpack(content)] if kind not in (6, 12) else []
    else:
        cursor.skip(form.size * count)
    return values


def _read_tensors(cursor: _Cursor, count: int) -> Generator[ByteRange, bytes, TensorSizes]:
    sizes = TensorSizes()
    for _ in range(count):
        name = yield from cursor.text(_LONGEST_NAME, "the name of a tensor")
        dimensions = yield from cursor.number(_U32)
        if dimensions > _MOST_DIMENSIONS:
            raise GgufProblem(f"the tensor {name[:80]!r} claims {dimensions} dimensions")
        elements = 1
        for _ in range(dimensions):
            elements *= yield from cursor.number(_U64)
        if elements > _LARGEST_TENSOR:
            raise GgufProblem(f"the tensor {name[:80]!r} claims {elements} elements")
        kind = yield from cursor.number(_U32)
        yield from cursor.number(_U64)
        block, size = _BLOCKS.get(kind, (1, 0))  # of a newer type the size is not known, and nothing is claimed
        sizes.add(name, elements, -(-elements // block) * size)
    return sizes


def _facts(metadata: Mapping[str, MetadataValue], sizes: TensorSizes) -> GgufFacts:
    architecture = _text(metadata, "general.architecture")
    if not architecture:
        raise GgufProblem("it does not say its architecture (general.architecture)")
    return GgufFacts(
        architecture=architecture,
        name=_text(metadata, "general.name"),
        licence=_text(metadata, "general.license"),
        quantisation=_FILE_TYPES.get(number_at(metadata, "general.file_type", -1), ""),
        kind=_kind(metadata, architecture),
        context_length=number_at(metadata, f"{architecture}.context_length"),
        chat_template=_text(metadata, _CHAT_TEMPLATE),
        hears=metadata.get("clip.has_audio_encoder") is True,
        parameters=sizes.parameters,
        shape=shape_of(architecture, metadata, sizes),
    )


def _kind(metadata: Mapping[str, MetadataValue], architecture: str) -> GgufKind:
    if architecture == "clip" or _text(metadata, "general.type") == "mmproj":
        return GgufKind.PROJECTOR
    if _text(metadata, "general.type") == "adapter":
        return GgufKind.ADAPTER
    pooling = metadata.get(f"{architecture}.pooling_type")
    if pooling == _RANKS:
        return GgufKind.RERANK
    if architecture in _EMBEDDING or (isinstance(pooling, int) and pooling > 0):
        return GgufKind.EMBEDDING
    return GgufKind.CHAT if _text(metadata, _CHAT_TEMPLATE) else GgufKind.COMPLETION


def _text(metadata: Mapping[str, MetadataValue], key: str) -> str:
    value = metadata.get(key)
    return value if isinstance(value, str) else ""
