"""A model that was added or enabled is known to gateways by the time of the answer that says so."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from corral.base.tasks import running
from corral.frontend.serving.gateways import reports as reports_module
from corral.frontend.serving.gateways import view as view_module
from corral.wire.view import GatewayShare, View, ViewChange, models_digest
from tests.kit.frontend import Frontend
from tests.kit.waiting import WAIT_TIMEOUT

YAML = "application/x-yaml"
MODEL = b"name: echo\nbackend: echo\nparameters: {model: echo.bin}\n"


async def refresh_when_rung(frontend: Frontend) -> None:
    """The loop of control that makes the view."""
    context = frontend.control.context
    with context.record.feed.listener() as poke:
        while True:
            await poke.wait(context.clock, view_module.PERIOD * 1000)
            await context.serving.view.refresh()


@asynccontextmanager
async def gateway(frontend: Frontend) -> AsyncIterator[set[str]]:
    """The names of the models that a gateway knows, which follows the view."""
    names: set[str] = set()
    began = asyncio.Event()

    async def follow() -> None:
        async with aclosing(frontend.control.context.serving.view.follow()) as messages:
            async for message in messages:
                if isinstance(message, View):
                    names.update(message.models)
                elif isinstance(message, ViewChange):
                    names.difference_update(message.gone_models)
                    names.update(entry.name for entry in message.models)
                began.set()

    await frontend.control.context.serving.view.refresh()
    async with running(refresh_when_rung(frontend), name="view"), running(follow(), name="gateway"):
        await began.wait()
        yield names


async def test_a_model_can_be_asked_once_it_was_added(frontend: Frontend) -> None:
    async with gateway(frontend) as names:
        added = await frontend.call("POST", "/models/import", MODEL, content_type=YAML)
        assert (added.status, names) == (200, {"echo"})


async def test_gateways_know_when_a_model_became_what_it_is(frontend: Frontend) -> None:
    async with gateway(frontend):
        await frontend.call("POST", "/models/import", MODEL, content_type=YAML)
        view = frontend.control.context.serving.view.current
        assert view is not None
        changed_at = frontend.control.context.models.catalogue.rows["echo"].changed_at
        assert view.models["echo"].created == int(changed_at.timestamp()) > 0


async def test_a_model_is_gone_or_back_once_it_was_disabled_or_enabled(frontend: Frontend) -> None:
    async with gateway(frontend) as names:
        await frontend.call("POST", "/models/import", MODEL, content_type=YAML)
        disabled = await frontend.call("PUT", "/models/toggle-state/echo/disable", {})
        assert (disabled.status, names) == (200, set())
        enabled = await frontend.call("PUT", "/models/toggle-state/echo/enable", {})
        assert (enabled.status, names) == (200, {"echo"})


async def test_a_gateway_that_takes_nothing_does_not_hold_up_changes(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_module, "_MODELS_WITHIN_SECONDS", 0.05)
    await frontend.control.context.serving.view.refresh()
    async with aclosing(frontend.control.context.serving.view.follow()) as messages:
        await anext(messages)
        async with running(refresh_when_rung(frontend), name="view"):
            added = await frontend.call("POST", "/models/import", MODEL, content_type=YAML)
            change = await anext(messages)  # the view may be made after the answer, which waits only for so long
        assert added.status == 200
        assert isinstance(change, ViewChange)
        assert [entry.name for entry in change.models] == ["echo"]


def tell_of_another_frontend(frontend: Frontend, digest: str) -> None:
    share = GatewayShare(frontend="f2", gateway="g2", models_digest=digest)
    frontend.control.context.serving.gateways.hear_of(share)


async def test_a_model_that_was_added_can_be_asked_at_other_frontends(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateways, asked = frontend.control.context.serving.gateways, asyncio.Event()
    unaware = gateways.elsewhere

    def elsewhere(*, other_than: str) -> list[str]:
        asked.set()
        return unaware(other_than=other_than)

    monkeypatch.setattr(gateways, "elsewhere", elsewhere)
    monkeypatch.setattr(reports_module, "_MODELS_WITHIN_SECONDS", WAIT_TIMEOUT.total_seconds())
    async with gateway(frontend):
        tell_of_another_frontend(frontend, models_digest({}))
        adding = asyncio.create_task(
            frontend.call("POST", "/models/import", MODEL, content_type=YAML), name="POST /models/import"
        )
        await asked.wait()
        assert not adding.done()
        view = frontend.control.context.serving.view.current
        assert view is not None
        tell_of_another_frontend(frontend, models_digest(view.models))
        assert (await adding).status == 200


@pytest.mark.parametrize("digest", ["", models_digest({})], ids=["older", "deaf"])
async def test_a_gateway_elsewhere_that_does_not_know_a_model_does_not_hold_up_its_change(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch, digest: str
) -> None:
    monkeypatch.setattr(reports_module, "_MODELS_WITHIN_SECONDS", 0.05 if digest else WAIT_TIMEOUT.total_seconds())
    async with gateway(frontend):
        tell_of_another_frontend(frontend, digest)
        added = await frontend.call("POST", "/models/import", MODEL, content_type=YAML)
        assert added.status == 200
