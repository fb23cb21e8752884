"""Exceptions from decoding untrusted JSON: wrong syntax or types, invalid UTF-8, or nesting that is too deep.

Apart from `errors`, because it needs msgspec: `corral version` imports the errors and must stay quick.
"""

from typing import Final

import msgspec

UNREADABLE_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
