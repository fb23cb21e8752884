"""Ends users of a NATS account before they expire: they are written into the account's claims, which the server gets.

That takes the operator's key, which signs claims, and a user of the system account, which may hand them over. The
server then closes the connections of these users, and refuses new ones. Only control imports this file.
"""

import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from corral.base.errors import BusTimeout, BusUnavailable, InvalidInput, NoResponders
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.bus.credentials import CredentialsProvider, UserJwt
from corral.bus.nkey_claims import ClaimsKey, read_claims

if TYPE_CHECKING:
    from corral.bus.client import NatsBus

_WITHIN: Final = timedelta(seconds=5)
_ROUNDS: Final = 5
"""How often claims are pushed: another frontend may push its own at the same time, and undo ours."""


ReadRevocations = Callable[[], Awaitable[tuple[Mapping[str, datetime], Collection[str]]]]
"""Returns the public keys of revoked users with their expiry, and of those that expired."""


ConnectBus = Callable[[CredentialsProvider], "NatsBus"]
"""Makes a bus for a user of the system account. Passed in, so that who only checks seeds imports no NATS client."""


class RevocationFailed(BusUnavailable):
    """The server did not take new claims."""


def with_revocations(
    claims: Mapping[str, Any], revoked: Mapping[str, datetime], ended: Collection[str], *, now: datetime
) -> dict[str, Any] | None:
    """Return an account's claims with these users revoked until they expire, without those that ended since; None when
    that changes nothing. What others wrote there stays.

    They are issued after those that are there, even if the clock of their issuer is ahead of ours, because a server
    keeps the claims with the later date.
    """
    nats = claims["nats"]
    before = nats.get("revocations") or {}
    revocations = {key: int(until.timestamp()) for key, until in revoked.items()}
    after = {key: at for key, at in before.items() if key not in ended} | revocations
    if after == before:
        return None
    issued = max(int(now.timestamp()), int(claims.get("iat") or 0) + 1)
    return {**claims, "iat": issued, "nats": {**nats, "revocations": after}}


class Revoker:
    """Writes revocations into the claims of one account. Raises InvalidInput for a seed of no operator."""

    def __init__(self, *, operator_seed: str, system: UserJwt, account: str, connect: ConnectBus) -> None:
        self._operator = ClaimsKey(operator_seed, "operator")
        self._system = system
        self._account = account
        self._connect = connect

    async def apply(self, read: ReadRevocations, *, now: datetime) -> None:
        """Return when the server has all users revoked that `read` returns. RevocationFailed says why it has not.

        They are read again after each update: it may have undone one of another frontend, made since the claims were
        looked up, and that frontend may have looked before. A frontend stores a revocation before it updates the
        server.
        """
        async with self._connect(self._provide) as bus:
            for _ in range(_ROUNDS):
                revoked, ended = await read()
                claims = _account_claims(await self._ask(bus, "LOOKUP", b""))
                changed = with_revocations(claims, revoked, ended, now=now)
                if changed is None:
                    return
                _check(await self._ask(bus, "UPDATE", self._operator.sign(changed).encode()))
        raise RevocationFailed("another frontend writes other claims of the NATS account again and again")

    async def _provide(self) -> UserJwt:
        return self._system

    async def _ask(self, bus: "NatsBus", action: str, data: bytes) -> bytes:
        subject = f"$SYS.REQ.ACCOUNT.{self._account}.CLAIMS.{action}"
        try:
            return await bus.request(subject, data, timeout=_WITHIN)
        except NoResponders as error:
            problem = "the NATS server keeps no claims that can be changed; it needs a resolver of the type full"
            raise RevocationFailed(problem) from error
        except (BusTimeout, BusUnavailable) as error:
            enduring = bus.problems.enduring
            raise RevocationFailed(error.message if enduring is None else enduring.detail) from error


def _check(answer: bytes) -> None:
    try:
        document = json.loads(answer)
        error, code = document.get("error"), (document.get("data") or {}).get("code")
    except (AttributeError, *UNREADABLE_JSON) as unreadable:
        raise RevocationFailed("the NATS server answers what nobody understands") from unreadable
    if error is not None or code != 200:
        description = error.get("description") if isinstance(error, dict) else None
        raise RevocationFailed(f"the NATS server refuses the account's new claims: {description or 'no reason given'}")


def _account_claims(answer: bytes) -> dict[str, Any]:
    """Raise RevocationFailed for what is no account's claims."""
    try:
        return read_claims(answer.decode(errors="replace"))
    except InvalidInput as error:
        raise RevocationFailed(f"the NATS server has no claims of the account: {error.problem}") from error
