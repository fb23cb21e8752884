"""Signs what NATS calls claims, JWTs about operators, accounts and users, and reads them.

Only control imports this file, and `corral up` at its first start: its libraries cost each process 8 MB.
"""

import base64
import json
import secrets
from collections.abc import Mapping
from typing import Any, Final, Self

import nkeys
from cryptography.hazmat.primitives import hashes

from corral.base.errors import InvalidInput
from corral.base.unreadable_json import UNREADABLE_JSON

_HEADER: Final = {"typ": "JWT", "alg": "ed25519-nkey"}
_KINDS: Final = {
    "operator": (nkeys.PREFIX_BYTE_OPERATOR, "SO"),
    "account": (nkeys.PREFIX_BYTE_ACCOUNT, "SA"),
    "user": (nkeys.PREFIX_BYTE_USER, "SU"),
}
_SEED_BYTES: Final = 32


class ClaimsKey:
    """A key of an operator, an account or a user, which signs claims."""

    def __init__(self, seed: str, kind: str) -> None:
        """Raise InvalidInput for another kind of seed, which is encoded again to check it: the library ignores the
        checksum."""
        prefix, start = _KINDS[kind]
        article = "a" if kind == "user" else "an"
        try:
            decoded_prefix, raw = nkeys.decode_seed(bytearray(seed.encode("ascii")))
            is_whole = nkeys.encode_seed(bytes(raw), decoded_prefix).decode() == seed
        except (nkeys.NkeysError, ValueError, IndexError) as error:
            raise InvalidInput(
                f"NATS {kind} seed", f"is no seed; that of {article} {kind} starts with {start}"
            ) from error
        if not is_whole or decoded_prefix != prefix:
            problem = f"is mistyped, or the seed of something else; that of {article} {kind} starts with {start}"
            raise InvalidInput(f"NATS {kind} seed", problem)
        self.seed = seed
        self.raw = bytes(raw)
        self._pair = nkeys.from_seed(bytearray(seed.encode("ascii")))
        self.public: str = self._pair.public_key.decode()

    @classmethod
    def make(cls, kind: str, raw: bytes | None = None) -> Self:
        """Return the key of these 32 bytes, or a new one."""
        seed = nkeys.encode_seed(raw or secrets.token_bytes(_SEED_BYTES), _KINDS[kind][0])
        return cls(seed.decode(), kind)

    def sign(self, claims: Mapping[str, object]) -> str:
        """Return the JWT. Its issuer is this key, and its id is the digest of the other claims, as in NATS's own
        library."""
        body = {**claims, "iss": self.public}
        body.pop("jti", None)
        digest = hashes.Hash(hashes.SHA512_256())
        digest.update(_json(body))
        jti = base64.b32encode(digest.finalize()).decode().rstrip("=")
        text = f"{_part(_json(_HEADER))}.{_part(_json({'jti': jti, **body}))}"
        return f"{text}.{_part(self._pair.sign(text.encode()))}"


def read_claims(jwt: str) -> dict[str, Any]:
    """Return the claims of a JWT whose issuer is known by other means: the signature is not checked."""
    try:
        _, body, _ = jwt.strip().split(".")
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (ValueError, *UNREADABLE_JSON) as error:
        raise InvalidInput("NATS claims", "are no JWT") from error
    if not isinstance(claims, dict) or not isinstance(claims.get("nats"), dict):
        raise InvalidInput("NATS claims", "are not about anything of NATS")
    return claims


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
