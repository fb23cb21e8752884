"""Keys that are limited to some models, and keys of people who may look but not ask."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from corral.wire.keys import LIMITED_INFERENCE, hash_secret
from corral.wire.view import KeyEntry, ModelEntry, ViewChange, decode_line, encode_line
from tests.kit.gateway import MODEL, GatewayWorld, chat, keys, request, world

LIMITED = "corral_limited-to-some"
VIEWER = "corral_may-only-look"


def limited(*models: str, scopes: tuple[str, ...] = (LIMITED_INFERENCE,)) -> dict[str, KeyEntry]:
    entry = KeyEntry(hash=hash_secret(LIMITED), id="key3", scopes=scopes, models=frozenset(models))
    viewer = KeyEntry(hash=hash_secret(VIEWER), id="key4", scopes=("viewer",))
    return {**keys(), entry.hash: entry, viewer.hash: viewer}


MODELS = {
    name: ModelEntry(name=name, alias_of=alias)
    for name, alias in ((MODEL, ""), ("nick", MODEL), ("secret-project", ""), ("secret-nick", "secret-project"))
}


@asynccontextmanager
async def told(keys: dict[str, KeyEntry]) -> AsyncIterator[GatewayWorld]:
    """A gateway that knows these keys and all models."""
    async with world() as gateway:
        gateway.control.change(models=MODELS, keys=keys)
        await gateway.until(lambda: gateway.gateway.services.directory.version == 2)
        yield gateway


async def status_of(gateway: GatewayWorld, model: str) -> tuple[int, object]:
    answer = await gateway.ask(request(chat(model), key=LIMITED))
    return answer.status, None if answer.status == 200 else answer.error["code"]


def names_in(body: bytes) -> list[str]:
    return [model["id"] for model in msgspec.json.decode(body)["data"]]


@pytest.mark.parametrize(
    ("only", "allowed"),
    [((MODEL,), {MODEL, "nick"}), (("nick",), {"nick"}), (("secret-project", "later"), set()), ((), set())],
)
async def test_a_limited_key_asks_its_models_by_name_or_alias_and_no_others(
    only: tuple[str, ...], allowed: set[str]
) -> None:
    async with told(limited(*only)) as gateway:
        for model in (MODEL, "nick"):
            expected = (200, None) if model in allowed else (403, "model_not_allowed")
            assert await status_of(gateway, model) == expected


async def test_a_limited_key_learns_nothing_about_other_models() -> None:
    async with told(limited(MODEL, "secret-projec")) as gateway:
        there = await gateway.ask(request(chat("secret-project"), key=LIMITED))
        away = await gateway.ask(request(chat("secret-prozess"), key=LIMITED))
        assert (there.status, away.status) == (403, 403)
        text = str(there.error["message"])
        assert text.replace("secret-project'", "secret-prozess'") == str(away.error["message"])
        assert "limited to echo, secret-projec" in text

        near = await gateway.ask(request(chat("secret-projec"), key=LIMITED))
        assert (near.status, near.error["code"]) == (404, "model_not_found")
        assert "did you mean" not in str(near.error["message"])


async def test_the_list_of_models_has_only_those_that_the_key_may_ask() -> None:
    async with told(limited(MODEL, "later")) as gateway:
        listed = await gateway.ask(request(path="/v1/models", method="GET", key=LIMITED))
        assert names_in(listed.body) == [MODEL, "nick"]
        for name, status in ((MODEL, 200), ("nick", 200), ("secret-project", 403), ("later", 404)):
            shown = await gateway.ask(request(path=f"/v1/models/{name}", method="GET", key=LIMITED))
            assert shown.status == status


async def test_a_viewer_sees_the_list_and_asks_nothing() -> None:
    async with told(limited(MODEL)) as gateway:
        listed = await gateway.ask(request(path="/v1/models", method="GET", key=VIEWER))
        assert len(names_in(listed.body)) == len(MODELS)
        asked = await gateway.ask(request(chat(), key=VIEWER))
        assert (asked.status, asked.error["code"]) == (403, "missing_scope")


def test_gateways_that_know_no_limits_refuse_a_limited_key() -> None:
    """They know the scopes of their time, and take no notice of new fields."""
    line = encode_line(ViewChange(base=1, version=2, keys=[*limited(MODEL).values()]))
    told = decode_line(line)
    assert isinstance(told, ViewChange)
    entry = next(entry for entry in told.keys if entry.id == "key3")
    assert entry.models == {MODEL}
    assert {"admin", "inference"}.isdisjoint(entry.scopes)
    assert msgspec.json.decode(b'{"hash": "h"}', type=KeyEntry).models is None
