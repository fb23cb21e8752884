"""The fleet's own key, by which machines know that they talk to the fleet that they joined.

It signs nothing but proofs: a nonce of the caller, together with the certificates that this frontend shows.
"""

import asyncio
import base64
import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from corral import __version__
from corral.frontend.store.secrets import Secrets
from corral.wire.go_json import format_time
from corral.wire.joining import FleetProof, pin_of, proof_message

log = logging.getLogger(__name__)

FLEET_KEY: Final = "fleet-key"
"""The name of the secret."""
REPLACED_FOR: Final = timedelta(hours=1)
"""How long the fleet vouches for a certificate after it was replaced."""
KeyHash = Callable[[bytes], str]
"""Hashes the public key of a certificate in PEM form; ValueError when it cannot be read. Passed in, so that a fleet
without certificates does not import their library."""


class FleetKey:
    def __init__(self, key: Ed25519PrivateKey, certificates: Iterable[Path | None], key_hash: KeyHash) -> None:
        self._key = key
        self._key_hash = key_hash
        self._files = [file for file in certificates if file is not None]
        self._seen: dict[str, datetime] = {}
        """When each was last in a file. Renewed certificates join those before them for a while, since a gateway or a
        proxy may show either; not for ever, because one may be replaced after its key got into wrong hands."""
        self._last: dict[Path, str] = {}
        """What each file had when it could be read."""
        self._public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    @classmethod
    async def load(
        cls, secrets: Secrets, certificates: Iterable[Path | None], key_hash: KeyHash, *, at: datetime
    ) -> Self:
        """All frontends of a fleet have the same one: of several that find none, one makes it."""
        made = Ed25519PrivateKey.generate().private_bytes_raw()
        stored = await secrets.put_if_absent(FLEET_KEY, base64.b64encode(made).decode(), at=at)
        return cls(Ed25519PrivateKey.from_private_bytes(base64.b64decode(stored)), certificates, key_hash)

    @property
    def pin(self) -> str:
        return pin_of(self._public)

    async def prove(self, nonce: str, *, at: datetime) -> FleetProof:
        """Sign a nonce of the caller."""
        certificates = await self._certificates(at)
        return FleetProof(
            version=__version__,
            time=format_time(at),
            key=base64.b64encode(self._public).decode(),
            certificates=certificates,
            signature=base64.b64encode(self._key.sign(proof_message(nonce, certificates))).decode(),
        )

    async def _certificates(self, now: datetime) -> list[str]:
        for file in self._files:
            try:
                self._last[file] = self._key_hash(await asyncio.to_thread(file.read_bytes))
            except (OSError, ValueError) as error:
                extra = {"event": "fleet_key.no_certificate"}
                log.warning("cannot read the certificate %s: %s", file, error, extra=extra)
        self._seen |= dict.fromkeys(self._last.values(), now)
        self._seen = {key: at for key, at in self._seen.items() if now - at <= REPLACED_FOR}
        return sorted(self._seen)
