"""Deciding how backends are confined: each decision is on the record, and workers learn it with the next start."""

from collections.abc import Sequence

from corral.base.clock import Clock
from corral.base.errors import NotFound
from corral.base.queues import Batches
from corral.frontend.backends.decide.policy import BackendPolicy, decide_policy, wish_for
from corral.frontend.backends.store import BackendPolicyStore
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.wire.confinement import ConfinementWish, PolicyAsk


class BackendPolicies:
    def __init__(self, store: BackendPolicyStore, feed: Feed, clock: Clock) -> None:
        self._store = store
        self._feed = feed
        self._clock = clock
        self._wishes: Batches[str, ConfinementWish] = Batches(self._read_wishes, spacing_seconds=0)

    async def all(self) -> list[BackendPolicy]:
        """By name of the backend."""
        return await self._store.all()

    async def wish(self, backend: str) -> ConfinementWish:
        """What is sent to a worker that starts a process of this backend, under the requested name.

        Only the worker knows which program that name leads to, so it also gets the policies of other names.
        """
        return await self._wishes.store(backend)

    async def _read_wishes(self, backends: Sequence[str]) -> Sequence[ConfinementWish]:
        """One read for all that ask at a time: an install on a thousand nodes asks a thousand times."""
        policies = await self._store.all()
        return [wish_for(backend, policies) for backend in backends]

    async def put(self, backend: str, ask: PolicyAsk, *, by: str) -> BackendPolicy:
        """Decide for a backend. Doing it again changes nothing but who said it last."""
        policy = decide_policy(backend, ask, at=self._clock.now(), by=by)
        before = await self._store.get(backend)
        await self._store.put(policy, events=[_event(policy, before, policy.changed_by)])
        await self._feed.announce()
        return policy

    async def remove(self, backend: str, *, by: str) -> None:
        """Go back to what manifest and settings say."""
        before = await self._store.get(backend)
        if before is None:
            raise NotFound(f"nobody decided how the backend {backend[:100]} is confined")
        event = Event(
            kind=EventKind.BACKEND_POLICY_CHANGED,
            at=self._clock.now(),
            actor=by,
            data={"backend": backend, "before": _shown(before), "after": None},
        )
        if not await self._store.remove(backend, events=[event]):
            raise NotFound(f"nobody decided how the backend {backend[:100]} is confined")
        await self._feed.announce()


def _event(policy: BackendPolicy, before: BackendPolicy | None, by: str) -> Event:
    return Event(
        kind=EventKind.BACKEND_POLICY_CHANGED,
        at=policy.changed_at,
        actor=by,
        data={
            "backend": policy.backend,
            "before": None if before is None else _shown(before),
            "after": _shown(policy),
            "why": policy.reason,
        },
    )


def _shown(policy: BackendPolicy) -> str:
    if not policy.is_confined:
        return "not confined"
    return f"confined, network {policy.network}"
