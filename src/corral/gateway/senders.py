"""Who sends the requests of a connection, as far as it has shown, and what all senders together may do."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Self

from corral.base.source_address import source_of
from corral.gateway.answers import Refusal
from corral.gateway.config import GatewayConfig
from corral.gateway.head import RequestHead, forwarded_lines
from corral.gateway.sources import SourceBudget, TrustedProxies
from corral.gateway.strangers import Evictable, Strangers
from corral.protocol.keyless import REGISTER, KeylessRoute
from corral.protocol.refusals import node_refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Senders:
    """What is counted over all connections of the process."""

    strangers: Strangers
    proxies: TrustedProxies
    registrations: SourceBudget

    @classmethod
    def of(cls, config: GatewayConfig, refusals: Counter[str]) -> Self:
        return cls(
            strangers=Strangers(per_source=config.limits.source_connections, refusals=refusals),
            proxies=TrustedProxies(config.trusted_proxies),
            registrations=SourceBudget(config.limits.source_registrations),
        )


class RequestSender:
    """One connection's. A proxy that is trusted has another sender for every request.

    The connection is passed in wherever it is counted: a reference to it would be a cycle.
    """

    __slots__ = ("_host", "_is_secure", "_senders", "_source", "forwarded", "is_known", "is_proxied")

    def __init__(self, senders: Senders, peer: object, *, is_secure: bool) -> None:
        self._senders = senders
        self._host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        self._source = source_of(self._host)
        self._is_secure = is_secure
        self.is_proxied = senders.proxies.has(self._host)
        self.is_known = False
        """Whether a valid proof was shown. Never so for a proxy."""
        self.forwarded = forwarded_lines(self._host, is_secure=is_secure)

    def connected(self, client: Evictable, now: float) -> None:
        if not self.is_proxied:
            self._senders.strangers.add(client, self._source, now)

    def prove(self, client: Evictable) -> None:
        """The sender has shown a valid proof of who it is."""
        self._senders.strangers.drop(client)
        self.is_known = not self.is_proxied

    def meet(self, client: Evictable, head: RequestHead, keyless: KeylessRoute | None, now: float) -> None:
        """A request begins. Without a valid key it goes to `keyless`. Refusal where its source asks too often."""
        is_named = self.is_proxied and self._look_behind_proxy(head)
        if keyless is None:
            self.prove(client)
            return
        if is_named:
            self._senders.strangers.add(client, self._source, now)
        if keyless is REGISTER:
            self._count_registration(now)

    def leave(self, client: Evictable) -> None:
        """The request of a proxy is over: what it sends next may be anybody's."""
        self._senders.strangers.drop(client)

    def _look_behind_proxy(self, head: RequestHead) -> bool:
        """Whether the proxy says whom it speaks for."""
        named = self._senders.proxies.client_of(head.forwarded_for.decode("latin-1"))
        is_secure = head.forwarded_proto == b"https" if head.forwarded_proto else self._is_secure
        self._source = source_of(named or self._host)
        self.forwarded = forwarded_lines(named or self._host, is_secure=is_secure)
        return named is not None

    def _count_registration(self, now: float) -> None:
        seconds = self._senders.registrations.take(self._source, now)
        if seconds:
            text = "too many registrations from this address; the setting gateway.source_registrations allows more"
            raise Refusal.by_localai(
                429,
                node_refusal(429, text),
                code="too_many_registrations",
                headers={"Retry-After": str(math.ceil(seconds))},
            )
