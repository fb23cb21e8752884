"""Exceptions from decoding untrusted JSON: wrong syntax or types, invalid UTF-8, or nesting that is too deep."""

from typing import Final

import msgspec

UNREADABLE_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
