"""What reading somebody else's JSON may lead to: wrong syntax or types, bytes that are no text, lists a mile deep."""

from typing import Final

import msgspec

UNREADABLE_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
