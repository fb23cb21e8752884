"""People who install, upgrade and delete backends at frontends that die under them, and who know what they were told.

An answer that never came may mean yes: then the same is asked again with the same key, at any frontend, until somebody
answers. Each person has backends of their own and does one thing after the other, so that it is beyond doubt which wish
was the last one for a node and a backend.
"""

import asyncio
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import aiohttp
import msgspec

from corral.frontend.operations.decide.intent import Verb
from corral.wire.operation_views import Changed, OperationAsk, OperationView
from tests.kit.admin_api import AdminAnswer, AdminApi

Place = tuple[str, str]
"""A node's id and a backend."""

_REFUSED: Final = frozenset({400, 404, 409})
_AGAIN_SECONDS: Final = 0.2
_PAUSE_SECONDS: Final = (0.0, 0.4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was accepted."""

    operation: str
    verb: Verb
    backend: str
    uri: str
    must_renew: bool
    asked_at: datetime
    """Before it was asked for the first time."""
    nodes: Sequence[str]


@dataclass(kw_only=True)
class Ledger:
    """All answers that people got, in order."""

    wishes: dict[str, Wish] = field(default_factory=dict)
    last: dict[Place, Wish] = field(default_factory=dict)
    cancelled: set[tuple[str, str]] = field(default_factory=set)
    """Operations and nodes."""
    asked_again: int = 0
    """Answers that never came."""

    def note(self, wish: Wish) -> None:
        self.wishes[wish.operation] = wish
        for node in wish.nodes:
            self.last[node, wish.backend] = wish

    def is_free(self, place: Place) -> bool:
        """Whether the last wish was cancelled, so that the expected state is unknown."""
        return (self.last[place].operation, place[0]) in self.cancelled


class Person:
    """`backends` are this person's alone."""

    def __init__(
        self, name: str, seed: int, ledger: Ledger, *, frontends: Sequence[AdminApi], backends: Sequence[str]
    ) -> None:
        self._name = name
        self._random = random.Random(seed)
        self._ledger = ledger
        self._frontends = frontends
        self._backends = backends
        self._numbers = itertools.count(1)
        self._mine: list[Wish] = []

    async def act_until(self, over: asyncio.Event, nodes: Sequence[str]) -> None:
        """One thing after the other. What was begun is brought to its answer."""
        while not over.is_set():
            await self.act(nodes)
            await asyncio.sleep(self._random.uniform(*_PAUSE_SECONDS))

    async def act(self, nodes: Sequence[str]) -> None:
        """Something at random, of these nodes."""
        if self._mine and self._random.random() < 0.12:
            await self._cancel(self._random.choice(self._mine[-3:]))
        else:
            await self.ask(self._new_ask(nodes))

    def _new_ask(self, nodes: Sequence[str]) -> OperationAsk:
        backend = self._random.choice(self._backends)
        kind = self._random.choices(["install", "force", "uri", "upgrade", "delete"], [5, 2, 2, 3, 4])[0]
        some = self._random.sample(list(nodes), self._random.randint(1, len(nodes)))
        chosen = [] if self._random.random() < 0.3 else some
        match kind:
            case "upgrade" | "delete":
                return OperationAsk(verb=kind, backend=backend, nodes=chosen)
            case "uri":
                uri = f"oci://registry.example/{backend}:v{next(self._numbers)}"
                return OperationAsk(verb="install", uri=uri, name=backend, alias=f"{backend}-alias", nodes=chosen)
            case _:
                return OperationAsk(verb="install", backend=backend, force=kind == "force", nodes=chosen)

    async def ask(self, wanted: OperationAsk) -> Wish | None:
        """Ask until a frontend answers; None means refused."""
        key = f"{self._name}-{next(self._numbers)}"
        asked_at = datetime.now(UTC)
        answer = await self._insist("/api/v1/operations", msgspec.json.encode(wanted), {"Idempotency-Key": key})
        if answer.status in _REFUSED:
            return None
        accepted = msgspec.json.decode(answer.body, type=OperationView)
        wish = Wish(
            operation=accepted.id,
            verb=Verb(wanted.verb),
            backend=wanted.name or wanted.backend,
            uri=wanted.uri,
            must_renew=wanted.force or wanted.verb == Verb.UPGRADE,
            asked_at=asked_at,
            nodes=[target.node_id for target in accepted.targets],
        )
        self._ledger.note(wish)
        self._mine.append(wish)
        return wish

    async def _cancel(self, wish: Wish) -> None:
        answer = await self._insist(f"/api/v1/operations/{wish.operation}/cancel", b"", {})
        told = msgspec.json.decode(answer.body, type=Changed).operation
        gone = {(told.id, target.node_id) for target in told.targets if target.status == "cancelled"}
        self._ledger.cancelled |= gone

    async def _insist(self, path: str, body: bytes, headers: Mapping[str, str]) -> AdminAnswer:
        while True:
            frontend = self._random.choice(self._frontends)
            sent = {"Authorization": f"Bearer {frontend.admin_key}", "Content-Type": "application/json", **headers}
            try:
                answer = await frontend.send("POST", path, body, sent)
            except (aiohttp.ClientError, OSError):
                answer = AdminAnswer(status=0, body=b"")
            if (answer.status < 300 and answer.status) or answer.status in _REFUSED:
                return answer
            self._ledger.asked_again += 1
            await asyncio.sleep(_AGAIN_SECONDS)
