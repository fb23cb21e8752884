"""Who sends the requests of a connection, how far that is proven, and the limits per source address."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, Protocol

from corral.base.ids import IpAddress, parsed_ip, source_of
from corral.gateway.answers import GatewayRefusal
from corral.gateway.config import GatewayConfig, TrustedNetwork
from corral.gateway.head import RequestHead, forwarded_lines
from corral.gateway.routes import OWN_PATHS
from corral.wire.keys import REGISTER, KeylessRoute, RequiredProof, hash_secret
from corral.wire.refusals import node_refusal

_LONGEST_FORWARDED: Final = 2048
_WITH_PORT: Final = re.compile(r"([0-9.]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
"""How some proxies write an address. IPv6 without brackets would be unclear."""
_MOST_SOURCES: Final = 10_000
_GRACE_SECONDS: Final = 3.0
"""Younger connections are evicted only at the global limit: their first request may be on its way."""
_PROOFS_PER_MINUTE: Final = 60
_PROOFS_AT_ONCE: Final = 300
"""Bearers from one source that control has not accepted recently; each costs control milliseconds. The burst is
large because a restarted gateway has accepted none, and hundreds of workers may share an address."""
_PAGES_PER_MINUTE: Final = 20 * 60
_PAGES_AT_ONCE: Final = 200
"""Requests per source to routes that control answers without a proof. A browser that opens the web page for the first
time asks for some 15 files, and an office may share one address."""
_REFUSALS_PER_MINUTE: Final = 20 * 60
_REFUSALS_AT_ONCE: Final = 200
"""Requests per source that are refused because they show no valid key, and keep their connections. The others have to
connect again, which takes longer than to be refused."""
_MOST_REFUSALS: Final = 8
"""Refusals on one connection without a valid key; the last one closes it. Browsers that are not signed in are refused
a few times while they load the page."""
_DENIED: Final = frozenset({401, 403})


class TrustedProxies:
    """The proxies whose `X-Forwarded-For` is believed."""

    def __init__(self, networks: Sequence[TrustedNetwork]) -> None:
        self._networks = networks

    def has(self, host: str) -> bool:
        return bool(self._networks) and self._is_one(parsed_ip(host))

    def client_of(self, forwarded_for: str) -> str | None:
        """Return the last address of the header that is not one of our proxies; earlier ones are the client's own
        claims.

        None when the proxy does not name its client.
        """
        for text in reversed(forwarded_for[-_LONGEST_FORWARDED:].split(",")):
            address = parsed_ip(_without_port(text.strip()))
            if address is None:
                return None
            if not self._is_one(address):
                return str(address)
        return None

    def _is_one(self, address: IpAddress | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


def _without_port(text: str) -> str:
    """Return the host of `192.0.2.1:5678` or `[2001:db8::1]:443`, and any other text as it is."""
    match = _WITH_PORT.fullmatch(text)
    return text if match is None else match[1]


class SourceBudget:
    """A rate limit per source address: `per_minute` times (0 is unlimited), and `burst` times at once (default: as
    many)."""

    def __init__(self, per_minute: int, *, burst: int | None = None) -> None:
        self._per_minute = per_minute
        self._burst = per_minute if burst is None else burst
        self._spent: dict[str, tuple[float, float]] = {}
        """How much each source has used, and at which time. Sources that used nothing recently are forgotten."""

    def take(self, source: str, now: float) -> float:
        """Use the budget once. Return 0 when allowed, else the seconds until it is."""
        if not self._per_minute:
            return 0.0
        spent, at = self._spent.get(source, (0.0, now))
        spent = max(0.0, spent - (now - at) * self._per_minute / 60)
        if spent + 1 > self._burst:
            return (spent + 1 - self._burst) * 60 / self._per_minute
        self._spent.pop(source, None)  # keeps the dictionary in order of last use
        self._spent[source] = (spent + 1, now)
        if len(self._spent) > _MOST_SOURCES:
            del self._spent[next(iter(self._spent))]
        return 0.0

    def give_back(self, source: str) -> None:
        """Undo the last `take` of this source."""
        spent, at = self._spent.get(source, (0.0, 0.0))
        if spent > 1:
            self._spent[source] = (spent - 1, at)
        else:
            self._spent.pop(source, None)


class AcceptedBearers:
    """Hashes of bearers that control accepted from workers; the least recently used are forgotten."""

    def __init__(self, most: int = _MOST_SOURCES) -> None:
        self._most = most
        self._hashes: dict[str, None] = {}

    def __contains__(self, hash: str) -> bool:
        return hash in self._hashes

    def add(self, hash: str) -> None:
        self._hashes.pop(hash, None)  # keeps the dictionary in order of last use
        self._hashes[hash] = None
        if len(self._hashes) > self._most:
            del self._hashes[next(iter(self._hashes))]

    def drop(self, hash: str) -> None:
        self._hashes.pop(hash, None)


class Evictable(Protocol):
    def abort(self) -> None: ...


class Strangers:
    """Evicts connections that have not proven who they are, when there are too many.

    A proof is a key in the view, or a worker's bearer that control accepts. At a limit the oldest stranger is closed,
    never the newcomer: holding many connections open keeps nobody out, not even from the same address.
    """

    def __init__(self, *, per_source: int, refusals: Counter[str]) -> None:
        """`per_source` limits the connections of one source; `refusals` counts evicted ones."""
        self._per_source = per_source
        self._refusals = refusals
        self._sources: dict[Evictable, tuple[str, float]] = {}
        """Source address and start time of each stranger, oldest first."""
        self._by_source: dict[str, dict[Evictable, None]] = {}
        self._closing: set[Evictable] = set()

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def closing(self) -> int:
        """Number of evicted connections that the loop has not closed yet."""
        return len(self._closing)

    def add(self, client: Evictable, source: str, now: float) -> None:
        """Count a connection under its source, and evict that source's oldest one when there are too many."""
        self.drop(client)
        self._sources[client] = source, now
        of_source = self._by_source.setdefault(source, {})
        of_source[client] = None
        self._thin_out(of_source, now)

    def sweep(self, now: float) -> None:
        """Evict surplus connections that were too young before."""
        for of_source in list(self._by_source.values()):
            self._thin_out(of_source, now)

    def _thin_out(self, of_source: dict[Evictable, None], now: float) -> None:
        while len(of_source) > self._per_source:
            oldest = next(iter(of_source))
            if now - self._sources[oldest][1] < _GRACE_SECONDS:
                return
            self._evict(oldest)

    def drop(self, client: Evictable) -> None:
        """Stop counting a connection: it has shown its proof, or belongs to a proxy."""
        source, _ = self._sources.pop(client, (None, 0.0))
        if source is not None:
            of_source = self._by_source[source]
            del of_source[client]
            if not of_source:
                del self._by_source[source]

    def closed(self, client: Evictable) -> None:
        self.drop(client)
        self._closing.discard(client)

    def make_room_for(self, newcomer: Evictable) -> bool:
        """Evict the oldest stranger. Return False when there is none except the newcomer."""
        oldest = next(iter(self._sources), newcomer)
        if oldest is newcomer:
            return False
        self._evict(oldest)
        return True

    def _evict(self, client: Evictable) -> None:
        self.drop(client)
        self._closing.add(client)
        self._refusals["connection_evicted"] += 1
        client.abort()


class Senders:
    """Counters and limits shared by all connections of the process."""

    def __init__(self, config: GatewayConfig, refusals: Counter[str]) -> None:
        self.strangers = Strangers(per_source=config.limits.source_connections, refusals=refusals)
        self.proxies = TrustedProxies(config.trusted_proxies)
        self.registrations = SourceBudget(config.limits.source_registrations)
        self.proofs = SourceBudget(_PROOFS_PER_MINUTE, burst=_PROOFS_AT_ONCE)
        """Proofs that control has to check. One that it accepts is given back."""
        self.accepted = AcceptedBearers()
        self.pages = SourceBudget(_PAGES_PER_MINUTE, burst=_PAGES_AT_ONCE)
        self.refusals = SourceBudget(_REFUSALS_PER_MINUTE, burst=_REFUSALS_AT_ONCE)


class RequestSender:
    """The sender of one connection's requests. Behind a trusted proxy every request has another sender.

    The connection is passed to each method: a reference to it would be a cycle.
    """

    __slots__ = (
        "_has_spent_proof",
        "_host",
        "_is_secure",
        "_refusals",
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
        self._refusals = 0
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
        """A request begins. Without a valid key it goes to `keyless`. Raise `GatewayRefusal` when its source asks so
        often that control would have no time for others."""
        senders = self._senders
        is_named = self.is_proxied and self._take_name(head)
        if keyless is None:
            self.prove(client)
            return
        if is_named:
            senders.strangers.add(client, self._source, now)
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

    def _take_name(self, head: RequestHead) -> bool:
        """Take the source of this request from the proxy. Return whether the proxy names its client."""
        named = self._senders.proxies.client_of(head.forwarded_for.decode("latin-1"))
        is_secure = head.forwarded_proto == b"https" if head.forwarded_proto else self._is_secure
        self._source = source_of(named or self._host)
        self.forwarded = forwarded_lines(named or self._host, is_secure=is_secure)
        return named is not None

    def has_many_refusals(self, refusal: GatewayRefusal, head: RequestHead, now: float) -> bool:
        """Count a refusal of a request without a valid key. Return whether its source gets so many that this one closes
        the connection. Its status stays 401, because client packages repeat requests that get a 429."""
        if refusal.status != HTTPStatus.UNAUTHORIZED:
            return False
        if self.is_proxied:
            self._take_name(head)
        return self._senders.refusals.take(self._source, now) > 0 and not self.is_proxied

    def is_last_refusal(self) -> bool:
        """Count a refusal. Return whether the connection is to be closed with it."""
        self._refusals += 1
        return self._refusals >= _MOST_REFUSALS and not self.is_known and not self.is_proxied

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


def _bearer_hash(head: RequestHead) -> str:
    return head.key_hash or hash_secret(head.key or "")


def _too_many_of_worker(text: str, code: str, seconds: float) -> GatewayRefusal:
    headers = {"Retry-After": str(math.ceil(seconds))}
    return GatewayRefusal.by_localai(429, node_refusal(429, text), code=code, headers=headers)
