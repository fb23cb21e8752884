"""Who sends the requests of a connection, how far that is proven, and the limits per source address."""

import math
from collections import Counter
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Self

from corral.base.ids import source_of
from corral.gateway.answers import GatewayRefusal
from corral.gateway.config import GatewayConfig
from corral.gateway.head import RequestHead, forwarded_lines
from corral.gateway.routes import OWN_PATHS
from corral.gateway.sources import AcceptedBearers, Evictable, SourceBudget, Strangers, TrustedProxies
from corral.wire.keys import REGISTER, KeylessRoute, RequiredProof, hash_secret
from corral.wire.refusals import node_refusal

_PROOFS_PER_MINUTE: Final = 60
_PROOFS_AT_ONCE: Final = 300
"""Bearers from one source that control has not accepted recently; each costs control milliseconds. The burst is
large because a restarted gateway has accepted none, and hundreds of workers may share an address."""
_PAGES_PER_MINUTE: Final = 20 * 60
_PAGES_AT_ONCE: Final = 100
"""Requests per source to routes that control answers without a proof. More than a browser needs."""
_DENIED: Final = frozenset({401, 403})


@dataclass(frozen=True, slots=True, kw_only=True)
class Senders:
    """Counters and limits shared by all connections of the process."""

    strangers: Strangers
    proxies: TrustedProxies
    registrations: SourceBudget
    proofs: SourceBudget
    """Proofs that control has to check. One that it accepts is given back."""
    accepted: AcceptedBearers
    pages: SourceBudget

    @classmethod
    def of(cls, config: GatewayConfig, refusals: Counter[str]) -> Self:
        return cls(
            strangers=Strangers(per_source=config.limits.source_connections, refusals=refusals),
            proxies=TrustedProxies(config.trusted_proxies),
            registrations=SourceBudget(config.limits.source_registrations),
            proofs=SourceBudget(_PROOFS_PER_MINUTE, burst=_PROOFS_AT_ONCE),
            accepted=AcceptedBearers(),
            pages=SourceBudget(_PAGES_PER_MINUTE, burst=_PAGES_AT_ONCE),
        )


class RequestSender:
    """The sender of one connection's requests. Behind a trusted proxy every request has another sender.

    The connection is passed to each method: a reference to it would be a cycle.
    """

    __slots__ = (
        "_has_spent_proof",
        "_host",
        "_is_secure",
        "_senders",
        "_source",
        "forwarded",
        "is_known",
        "is_proxied",
    )

    def __init__(self, senders: Senders, peer: object, *, is_secure: bool) -> None:
        self._senders = senders
        self._host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        self._source = source_of(self._host)
        self._is_secure = is_secure
        self._has_spent_proof = False
        """Whether the current request was counted as a proof of its source."""
        self.is_proxied = senders.proxies.has(self._host)
        self.is_known = False
        """Whether a valid proof was shown. Never true for a proxy."""
        self.forwarded = forwarded_lines(self._host, is_secure=is_secure)

    def connected(self, client: Evictable, now: float) -> None:
        if not self.is_proxied:
            self._senders.strangers.add(client, self._source, now)

    def prove(self, client: Evictable) -> None:
        """The sender has shown a valid proof of its identity."""
        self._senders.strangers.drop(client)
        self.is_known = not self.is_proxied

    def meet(self, client: Evictable, head: RequestHead, keyless: KeylessRoute | None, now: float) -> None:
        """A request begins. Without a valid key it goes to `keyless`. Raise `GatewayRefusal` when its source asks too
        often."""
        is_named = self.is_proxied and self._look_behind_proxy(head)
        if keyless is None:
            self.prove(client)
            return
        if is_named:
            self._senders.strangers.add(client, self._source, now)
        self._count(head, keyless, now)

    def judged(self, client: Evictable, head: RequestHead, status: int) -> None:
        """Control answered a proof that only it can check."""
        if status in _DENIED:
            self._senders.accepted.drop(_bearer_hash(head))
            return
        if self._has_spent_proof:
            self._senders.proofs.give_back(self._source)
        if status < HTTPStatus.MULTIPLE_CHOICES:
            self._senders.accepted.add(_bearer_hash(head))
            self.prove(client)

    def leave(self, client: Evictable) -> None:
        """A proxied request is over: the next one may come from another sender."""
        self._senders.strangers.drop(client)

    def _look_behind_proxy(self, head: RequestHead) -> bool:
        """Return whether the proxy names the client that it forwards for."""
        named = self._senders.proxies.client_of(head.forwarded_for.decode("latin-1"))
        is_secure = head.forwarded_proto == b"https" if head.forwarded_proto else self._is_secure
        self._source = source_of(named or self._host)
        self.forwarded = forwarded_lines(named or self._host, is_secure=is_secure)
        return named is not None

    def _count(self, head: RequestHead, keyless: KeylessRoute, now: float) -> None:
        """Raise `GatewayRefusal` when the source asks so often that control would have no time for others."""
        senders = self._senders
        if keyless.proof is RequiredProof.NODE:
            self._has_spent_proof = _bearer_hash(head) not in senders.accepted
            if self._has_spent_proof and (seconds := senders.proofs.take(self._source, now)):
                text = "too many tokens and secrets from this address that are not valid; try again later"
                raise _too_many_of_worker(text, "too_many_proofs", seconds)
            if keyless is REGISTER and (seconds := senders.registrations.take(self._source, now)):
                text = "too many registrations from this address; the setting gateway.source_registrations allows more"
                raise _too_many_of_worker(text, "too_many_registrations", seconds)
        elif head.path not in OWN_PATHS and (seconds := senders.pages.take(self._source, now)):
            text = "too many requests without a valid API key from this address; try again later"
            raise GatewayRefusal.busy(429, text, code="too_many_requests", retry_after=math.ceil(seconds))


def _bearer_hash(head: RequestHead) -> str:
    return head.key_hash or hash_secret(head.key or "")


def _too_many_of_worker(text: str, code: str, seconds: float) -> GatewayRefusal:
    headers = {"Retry-After": str(math.ceil(seconds))}
    return GatewayRefusal.by_localai(429, node_refusal(429, text), code=code, headers=headers)
