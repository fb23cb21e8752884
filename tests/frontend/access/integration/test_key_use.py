"""When keys were used last: told at once by the frontend that saw it, written rarely, and never earlier than before."""

from datetime import timedelta
from typing import Any

import pytest

from corral.base.errors import DatabaseUnavailable
from corral.base.ids import KeyId
from corral.base.tasks import running
from corral.frontend.access.store.keys import Keys
from corral.wire.go_json import format_time
from corral.wire.view import Finished, GatewayReport
from tests.kit.clock import ManualClock
from tests.kit.frontend import Frontend
from tests.kit.samples import after


async def new_key(frontend: Frontend, *scopes: str) -> tuple[KeyId, str]:
    made: Any = (await frontend.call("POST", "/api/v1/keys", {"name": "k", "scopes": list(scopes)})).json()
    return KeyId(made["id"]), made["key"]


async def shown(frontend: Frontend, key_id: KeyId) -> str | None:
    keys: Any = (await frontend.call("GET", "/api/v1/keys")).json()
    return next(key["last_used_at"] for key in keys if key["id"] == key_id)


async def test_many_requests_of_a_key_are_written_once(frontend: Frontend, clock: ManualClock) -> None:
    key_id, key = await new_key(frontend, "viewer")
    stored = Keys(frontend.control.context.database)
    assert await shown(frontend, key_id) is None
    for _ in range(3):
        assert (await frontend.call("GET", "/api/v1/nodes", key=key)).status == 200
        await clock.advance(timedelta(seconds=5))
    assert key_id not in await stored.uses(), "no request writes"
    last = clock.now() - timedelta(seconds=5)
    assert await shown(frontend, key_id) == format_time(last)

    await frontend.control.context.access.key_use.write()

    assert (await stored.uses())[key_id] == last
    assert await shown(frontend, key_id) == format_time(last)


async def test_gateways_tell_which_keys_asked_models(frontend: Frontend, clock: ManualClock) -> None:
    key_id, _ = await new_key(frontend, "inference")
    finished = [Finished(replica="r", model="m", key=id, outcome="ok", requests=9) for id in (key_id, "", "unknown")]
    frontend.control.context.serving.gateways.take(GatewayReport(gateway="g", sequence=1, finished=finished))
    assert await shown(frontend, key_id) == format_time(clock.now())
    await frontend.control.context.access.key_use.write()
    uses = await Keys(frontend.control.context.database).uses()
    assert (uses[key_id], KeyId("unknown") in uses) == (clock.now(), False)


async def test_of_two_frontends_the_later_time_counts(frontend: Frontend) -> None:
    key_id, _ = await new_key(frontend, "viewer")
    stored = Keys(frontend.control.context.database)
    for minutes in (2, 1):
        await stored.note_uses({key_id: after(60 * minutes)})
    assert (await stored.uses())[key_id] == after(120)


async def test_a_frontend_that_stops_writes_what_it_noted(frontend: Frontend, clock: ManualClock) -> None:
    key_id, key = await new_key(frontend, "viewer")
    context = frontend.control.context
    async with running(context.access.key_use.loops(context.record)["uses of keys"](), name="uses of keys"):
        await clock.until_sleeping(1)
        await frontend.call("GET", "/api/v1/nodes", key=key)
        assert key_id not in await Keys(context.database).uses()
    assert key_id in await Keys(context.database).uses()


async def test_what_cannot_be_written_is_kept(frontend: Frontend, monkeypatch: pytest.MonkeyPatch) -> None:
    key_id, key = await new_key(frontend, "viewer")
    await frontend.call("GET", "/api/v1/nodes", key=key)

    async def away(*_: object) -> None:
        raise DatabaseUnavailable

    with monkeypatch.context() as patched:
        patched.setattr(Keys, "note_uses", away)
        with pytest.raises(DatabaseUnavailable):
            await frontend.control.context.access.key_use.write()
    await frontend.control.context.access.key_use.write()
    assert key_id in await Keys(frontend.control.context.database).uses()
