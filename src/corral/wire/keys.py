"""The form of API keys and other secrets, and how they are hashed.

Keys are 256 random bits, so one round of SHA-256 is enough: there is nothing to guess, and a look-up by hash leaks
nothing about the key.
"""

import hashlib
import hmac
from typing import Final

from corral.base.ids import new_secret

PREFIX: Final = "corral_"
"""Makes a leaked key easy to find for people and scanners."""
API_KEY_HEADERS: Final = ("x-api-key", "api-key", "xi-api-key")
"""Headers in which client libraries send a key, beside `Authorization: Bearer`: Anthropic's, Azure's, ElevenLabs'."""
MIN_SECRET: Final = 32
MAX_SECRET: Final = 256


def new_key() -> str:
    return PREFIX + new_secret()


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def same(one: str, other: str) -> bool:
    """Compare in constant time, whatever the lengths."""
    return hmac.compare_digest(hashlib.sha256(one.encode()).digest(), hashlib.sha256(other.encode()).digest())


def bearer(header: str | None) -> str | None:
    """The token of an `Authorization: Bearer …` header; None when there is none."""
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and token else None
