"""Small GGUF files that are valid: headers with any metadata, and tensors of any claimed size."""

import struct

Value = str | int | bool | list[str] | list[int]


def text(value: str) -> bytes:
    content = value.encode()
    return struct.pack("<Q", len(content)) + content


def field(key: str, value: Value) -> bytes:
    if isinstance(value, bool):
        return text(key) + struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return text(key) + struct.pack("<II", 4, value)
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if all(isinstance(one, str) for one in value):
        return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(text(str(one)) for one in value)
    return text(key) + struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)


def gguf(*tensors: bytes, **metadata: Value) -> bytes:
    """A whole file; `general__name=…` is the key `general.name`."""
    fields = [field(key.replace("__", "."), value) for key, value in metadata.items()]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields))
    return head + b"".join(fields) + b"".join(tensors) + bytes(4096)


def tensor(name: str, *dimensions: int, kind: int = 0) -> bytes:
    sizes = struct.pack(f"<{len(dimensions)}Q", *dimensions)
    return text(name) + struct.pack("<I", len(dimensions)) + sizes + struct.pack("<IQ", kind, 0)


LLAMA: dict[str, Value] = {
    "general__architecture": "llama",
    "general__name": "A Llama",
    "general__file_type": 15,
    "llama__context_length": 8192,
    "llama__embedding_length": 4096,
    "llama__block_count": 32,
    "llama__attention__head_count": 32,
    "llama__attention__head_count_kv": 8,
}
