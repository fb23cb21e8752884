"""How a machine joins: join codes, fingerprints of nodes, the fleet's proof of who it is, and bodies about invitations.

The alphabet is Crockford's base 32, which has no letters that look or sound like digits. What people mistake for each
other is read as what was meant.
"""

import base64
import hashlib
import secrets
from collections.abc import Iterable
from typing import Final

import msgspec

from corral.base.errors import InvalidInput

ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_READ_AS: Final = str.maketrans({"O": "0", "I": "1", "L": "1", "-": None, " ": None, "\t": None})
_GROUP: Final = 4
CODE_CHARACTERS: Final = 16
"""Characters of a code, which hold 80 random bits."""
CHECK_CHARACTERS: Final = 4
"""A mistyped code is noticed before it is sent: one in a million is not."""
_FINGERPRINT_CHARACTERS: Final = 16
_PIN_BYTES: Final = 20
MIN_NONCE: Final = 16
MAX_NONCE: Final = 128


def new_code() -> str:
    """Return a new join code such as `K7QM-2XVD-9PTR-4HBN-0S3C`."""
    return _with_check("".join(secrets.choice(ALPHABET) for _ in range(CODE_CHARACTERS)))


def read_code(text: str) -> str:
    """Return the code as `new_code` writes it. Raise InvalidInput, never with the text, when it is no join code."""
    typed = text.strip().upper().translate(_READ_AS)
    expected_length = CODE_CHARACTERS + CHECK_CHARACTERS
    if len(typed) != expected_length:
        raise InvalidInput("join code", f"must have {expected_length} letters and digits, got {len(typed)}")
    if not set(typed) <= set(ALPHABET):
        raise InvalidInput("join code", "has characters that no join code has")
    code = _with_check(typed[:CODE_CHARACTERS])
    if code != grouped(typed):
        raise InvalidInput("join code", "is mistyped: its last four characters do not fit the others")
    return code


def _with_check(code: str) -> str:
    digest = hashlib.sha256(b"corral join code check\n" + code.encode()).digest()
    return grouped(code + base32(digest)[:CHECK_CHARACTERS])


def hash_code(code: str) -> str:
    """What is stored of a code. A plain hash is enough: nobody can try 80 bits."""
    return hashlib.sha256(b"corral join code\n" + code.encode()).hexdigest()


def base32(data: bytes) -> str:
    """Write bytes in the alphabet of codes; bits that fill no character are left out."""
    number, count = int.from_bytes(data), len(data) * 8 // 5
    number >>= len(data) * 8 - count * 5
    return "".join(ALPHABET[(number >> (5 * place)) & 31] for place in reversed(range(count)))


def grouped(text: str) -> str:
    """Write text in groups of four, for people."""
    return "-".join(text[start : start + _GROUP] for start in range(0, len(text), _GROUP))


def fingerprint_of(secret_hash: str) -> str:
    """Return what people compare to know a node by its secret; it tells nothing of the secret."""
    digest = hashlib.sha256(b"corral node fingerprint\n" + secret_hash.encode()).digest()
    return grouped(base32(digest)[:_FINGERPRINT_CHARACTERS])


class FleetProof(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Answer of `GET /api/v1/fleet?nonce=…`: who this fleet is, signed together with the caller's nonce."""

    version: str
    time: str
    """The time by the frontend's clock."""
    key: str
    """The fleet's public key: Ed25519, base64."""
    certificates: list[str] = []
    """SHA-256 of the public keys of the certificates that this frontend shows; none without TLS."""
    signature: str


def proof_message(nonce: str, certificates: Iterable[str]) -> bytes:
    """What a fleet signs. Nothing else that it may ever sign begins like this."""
    return "\n".join(["corral fleet proof 1", nonce, *sorted(certificates)]).encode()


def pin_of(key: bytes) -> str:
    """Return the short form of a fleet's public key, which a joining machine is given with the URL."""
    return base64.b32encode(hashlib.sha256(b"corral fleet key\n" + key).digest()[:_PIN_BYTES]).decode().lower()


def read_pin(text: str) -> str:
    """Return a pin as `pin_of` writes it; InvalidInput for anything else."""
    pin = text.strip().lower()
    length = _PIN_BYTES * 8 // 5
    if len(pin) != length or not set(pin) <= set("abcdefghijklmnopqrstuvwxyz234567"):
        raise InvalidInput("fleet pin", f"must have {length} characters of a to z and 2 to 7, got {text[:80]!r}")
    return pin


def read_join_url(text: str) -> tuple[str, str]:
    """Split what `--join` is given into the frontend's URL and the pin after `#`, which may be missing."""
    url, _, pin = text.strip().partition("#")
    return url, read_pin(pin) if pin else ""


class CreateInvitation(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Body of `POST /api/v1/invitations`."""

    expires_in: str = "1h"
    uses: int = 1
    labels: dict[str, str] = {}
    approve: bool = False
    """Machines that come with the code take part at once, without a person's approval."""


class InvitationView(msgspec.Struct, kw_only=True):
    """An invitation without its code, which is stored nowhere."""

    id: str
    state: str
    """`open`, `used`, `expired` or `revoked`."""
    labels: dict[str, str]
    approve: bool
    max_uses: int
    uses: int
    created_at: str
    created_by: str
    expires_at: str
    revoked_at: str | None


class CreatedInvitation(InvitationView, kw_only=True):
    """The only answer that has the code."""

    code: str
    pin: str
    """The pin by which the joining machine recognises the fleet."""
    url: str
    """Where the frontend says that it is reached; its host may be a wildcard, or on loopback."""
    nats_urls: list[str] = []
    """Where the machine will find NATS; empty if its settings must say so."""


class JoiningView(msgspec.Struct, kw_only=True):
    """Answer of `GET /api/v1/joining`: where machines find the fleet, and what lets them in. It has no secret."""

    url: str
    """Where the frontend says that it is reached; its host may be a wildcard, or on loopback."""
    nats_urls: list[str]
    """Where machines will find NATS; empty if their settings must say so."""
    pin: str
    """The pin by which a joining machine recognises the fleet."""
    by_token: bool
    """Whether the registration token, or a key of scope node, lets machines in: the only way for LocalAI's workers."""
    approves_by_token: bool
    """Whether machines that come with the token take part at once."""


class JoinCheck(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Body of `POST /api/v1/join-checks`: where the machine would be reached, for the frontend to try."""

    addresses: list[str] = []
    """Each `host:port`, at the address that the request comes from."""


class DialledAddress(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How a call from the frontend to one address went."""

    address: str
    word: str = ""
    """What the frontend sent there. Empty when it could not."""
    problem: str = ""


class JoinCheckAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    seen_from: str
    """The address from which the frontend sees the machine."""
    dialled: list[DialledAddress] = []
    invitation: str = ""
    """For a join code: a sentence about how long and how often it can be used."""
    nats_urls: list[str] | None = None
    """Where the machine will find NATS; empty if its settings must say so, null from older frontends."""
