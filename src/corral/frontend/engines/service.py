"""Adding, changing and removing engines that somebody else runs. Each act is on the record; keys never are."""

import ssl
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import fields, replace

from corral.base.clock import Clock
from corral.base.errors import Conflict, InvalidInput, NotFound
from corral.base.tasks import Poke
from corral.frontend.engines.addresses import EngineAddresses
from corral.frontend.engines.decide import ExternalEngine, checked
from corral.frontend.engines.store import ExternalEngineStore
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.store.db import ConstraintViolated
from corral.wire.engines import EngineAsk

MOST_ENGINES: Final = 1000
_UNTOLD: Final = frozenset({"key", "ca", "created_at", "created_by", "changed_at", "changed_by", "id"})
ANY_REVISION: Final = "*"
_TICK: Final = timedelta(microseconds=1)


class EngineChanged(Conflict):
    """The engine was changed meanwhile."""

    code = "precondition_failed"


class ExternalEngines:
    def __init__(
        self,
        store: ExternalEngineStore,
        addresses: EngineAddresses,
        feed: Feed,
        clock: Clock,
        *,
        alias_target: Callable[[str], str],
    ) -> None:
        """`alias_target` is the model that answers for a name of the fleet's; empty when that is no alias."""
        self._store = store
        self._addresses = addresses
        self._alias_target = alias_target
        self._feed = feed
        self._clock = clock
        self.current: Sequence[ExternalEngine] = ()
        """All engines, as the last `load` found them."""
        self.poke = Poke()
        """Rings when `load` found other engines than before."""

    async def load(self) -> Sequence[ExternalEngine]:
        """Read all engines from the database, and ring when they changed."""
        engines = await self._store.all()
        if engines != self.current:
            self.current = engines
            self.poke.ring()
        return self.current

    async def get(self, id: str) -> ExternalEngine:
        engine = await self._store.get(id)
        if engine is None:
            raise NotFound(f"there is no engine of the id {id[:100]}")
        return engine

    async def add(self, ask: EngineAsk, *, by: str) -> ExternalEngine:
        now = self._clock.now()
        engine = ExternalEngine(
            id=str(uuid.uuid4()), **_told(ask, key=""), created_at=now, created_by=by, changed_at=now, changed_by=by
        )
        engine = await self._allowed(engine)
        if len(await self.load()) >= MOST_ENGINES:
            raise Conflict(f"there are {MOST_ENGINES} engines already, and that is the most")
        try:
            await self._store.insert(engine, events=[_event(EventKind.ENGINE_ADDED, engine, by, _shown(engine))])
        except ConstraintViolated as error:
            raise _taken(engine) from error
        await self._announce()
        return engine

    async def change(self, id: str, ask: EngineAsk, *, revision: str, by: str) -> ExternalEngine:
        """Make the engine what `ask` says; a key that it does not mention stays. EngineChanged when it is of another
        revision by now."""
        before = await self.get(id)
        if revision not in (ANY_REVISION, before.revision):
            raise EngineChanged(f"the engine {before.name} has the revision {before.revision} by now, not {revision}")
        fields = _told(ask, key=before.key)
        now = max(self._clock.now(), before.changed_at + _TICK)  # the guard of the write, whatever the clock says
        engine = await self._allowed(replace(before, **fields, changed_at=now, changed_by=by))
        if before.key and ask.key is UNSET and engine.origin != before.origin:
            raise InvalidInput("key", f"must be given again: it was meant for {before.origin}, and nobody else")
        if replace(engine, changed_at=before.changed_at, changed_by=before.changed_by) == before:
            return before
        changes = {name: value for name, value in _shown(engine).items() if value != _shown(before).get(name)}
        changes |= {name: "changed" for name in ("key", "ca") if getattr(engine, name) != getattr(before, name)}
        try:
            event = _event(EventKind.ENGINE_CHANGED, engine, by, changes)
            if not await self._store.replace(engine, seen=before.changed_at, events=[event]):
                raise EngineChanged(f"the engine {before.name} is being changed by others; try again")
        except ConstraintViolated as error:
            raise _taken(engine) from error
        await self._announce()
        return engine

    async def remove(self, id: str, *, by: str) -> None:
        engine = await self.get(id)
        removed = replace(engine, changed_at=self._clock.now())
        if not await self._store.remove(id, events=[_event(EventKind.ENGINE_REMOVED, removed, by, {})]):
            raise NotFound(f"there is no engine of the id {id[:100]}")
        await self._announce()

    async def _allowed(self, engine: ExternalEngine) -> ExternalEngine:
        engine = checked(engine)
        _check_authorities(engine.ca)
        if target := self._alias_target(engine.model):
            raise InvalidInput("model", f"{engine.model} is another name of the model {target}; name that one")
        await self._addresses.check(engine)
        return engine

    async def _announce(self) -> None:
        await self.load()
        await self._feed.announce()


def _told(ask: EngineAsk, *, key: str) -> dict[str, Any]:
    """The fields that a person tells."""
    return {
        "model": ask.model,
        "name": ask.name,
        "url": ask.url,
        "remote_model": ask.remote_model,
        "uses": tuple(dict.fromkeys(ask.uses)),
        "key": key if ask.key is UNSET else ask.key,
        "ca": ask.ca,
        "health_path": ask.health_path,
        "max_concurrent": ask.max_concurrent,
        "weight": ask.weight,
        "fallback_order": ask.fallback_order,
        "is_enabled": ask.is_enabled,
    }


def _check_authorities(ca: str) -> None:
    if not ca:
        return
    try:
        has_any = ssl.create_default_context(cadata=ca).cert_store_stats()["x509"] > 0
    except (ssl.SSLError, ValueError):
        has_any = False
    if not has_any:
        raise InvalidInput("ca", "holds no certificate of an authority in PEM form (-----BEGIN CERTIFICATE-----)")


def _shown(engine: ExternalEngine) -> dict[str, object]:
    """What the record may tell of an engine."""
    values = {each.name: getattr(engine, each.name) for each in fields(engine) if each.name not in _UNTOLD}
    return {**values, "uses": list(engine.uses)}


def _event(kind: EventKind, engine: ExternalEngine, by: str, data: dict[str, object]) -> Event:
    named = {"id": engine.id, "model": engine.model, "name": engine.name}
    return Event(kind=kind, at=engine.changed_at, actor=by, data={**data, **named})


def _taken(engine: ExternalEngine) -> Conflict:
    return Conflict(f"the model {engine.model} has an engine of the name {engine.name} already")
