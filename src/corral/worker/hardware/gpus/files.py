"""Small files of the kernel, of which any may be missing, empty or strange."""

from pathlib import Path


def text_in(path: Path) -> str:
    """Trimmed, also of the zero bytes in a device tree; empty when it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8", errors="replace").strip(" \t\n\0")
    except OSError:
        return ""


def number_in(path: Path) -> int | None:
    """Decimal, or hexadecimal after `0x`; None when it is neither."""
    text = text_in(path)
    try:
        return int(text, 16 if text.lower().startswith("0x") else 10)
    except ValueError:
        return None
