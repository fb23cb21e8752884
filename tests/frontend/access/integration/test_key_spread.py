"""A key that is created works, and one that is revoked is refused, by the time of the answer that says so."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import pytest

from corral.base.tasks import running
from corral.frontend.serving.gateways import reports as key_spread
from corral.wire.view import GatewayReport, KeyEntry, keys_digest
from tests.kit.frontend import Frontend


def report(frontend: Frontend, gateway: str, *, sequence: int = 1) -> None:
    """A gateway says that it has the view that control has now."""
    current = frontend.control.context.serving.view.current
    digest = "" if current is None else keys_digest(current.keys)
    frontend.control.context.serving.gateways.take(
        GatewayReport(gateway=gateway, sequence=sequence, keys_digest=digest)
    )


async def follow(frontend: Frontend, gateway: str, *, heard: asyncio.Event) -> None:
    """A gateway that reports whatever it hears, as real ones do."""
    async with aclosing(frontend.control.context.serving.view.follow()) as messages:
        async for _ in messages:
            report(frontend, gateway)
            heard.set()


async def refresh_when_rung(frontend: Frontend) -> None:
    """The loop of control that makes the view."""
    with frontend.control.context.record.feed.listener() as poke:
        while True:
            await poke.wait(frontend.control.context.clock, key_spread._LOOK * 1000)
            await frontend.control.context.serving.view.refresh()


async def test_creating_and_revoking_answer_when_every_gateway_has_it(frontend: Frontend) -> None:
    context = frontend.control.context
    await context.serving.view.refresh()
    heard = asyncio.Event()
    async with (
        running(refresh_when_rung(frontend), name="view"),
        running(follow(frontend, "g1", heard=heard), name="gateway"),
    ):
        await heard.wait()
        made = await frontend.call("POST", "/api/v1/keys", {"name": "k", "scopes": ["inference"]})
        document: Any = made.json()
        assert (made.status, document["unconfirmed_gateways"]) == (201, [])
        assert context.serving.gateways.connected(other_than=keys_digest(view_keys(frontend))) == []
        assert str(document["id"]) in {entry.id for entry in view_keys(frontend).values()}
        revoked = await frontend.call("DELETE", f"/api/v1/keys/{document['id']}")
        assert revoked.status == 204
        assert str(document["id"]) not in {entry.id for entry in view_keys(frontend).values()}
        assert context.serving.gateways.connected(other_than=keys_digest(view_keys(frontend))) == []


def view_keys(frontend: Frontend) -> Mapping[str, KeyEntry]:
    current = frontend.control.context.serving.view.current
    assert current is not None
    return current.keys


async def test_a_gateway_that_does_not_confirm_is_named(frontend: Frontend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_spread, "_KEYS_WITHIN_SECONDS", 0.05)
    await frontend.control.context.serving.view.refresh()
    report(frontend, "slow")
    async with running(refresh_when_rung(frontend), name="view"):
        made = await frontend.call("POST", "/api/v1/keys", {"name": "k", "scopes": ["inference"]})
        document: Any = made.json()
        assert (made.status, document["unconfirmed_gateways"]) == (201, ["slow"])
        await frontend.control.context.serving.view.refresh()  # it may not have been made with the key yet
        report(frontend, "slow", sequence=2)
        revoked = await frontend.call("DELETE", f"/api/v1/keys/{document['id']}")
        assert (revoked.status, revoked.json()) == (202, {"id": document["id"], "unconfirmed_gateways": ["slow"]})


async def test_without_gateways_nobody_is_waited_for(frontend: Frontend) -> None:
    made = await frontend.call("POST", "/api/v1/keys", {"name": "k", "scopes": ["inference"]})
    document: Any = made.json()
    assert (made.status, document["unconfirmed_gateways"]) == (201, [])
