"""Requests that go on with a talk reach the replica that knows it, unless it has more to do than the others."""

import asyncio

from corral.wire.view import AffinityEntry, ModelEntry
from tests.kit.engine import GuidedStream, answering
from tests.kit.gateway import MODEL, GatewayWorld, chat, request, world

TALKS = [f"talk {number}: " + "words " * 200 for number in range(4)]


def remember(gateway: GatewayWorld, affinity: AffinityEntry | None) -> None:
    gateway.control.change(models={**gateway.control.view.models, MODEL: ModelEntry(name=MODEL, affinity=affinity)})


async def ask_each(gateway: GatewayWorld, texts: list[str]) -> list[int]:
    """Which engine answered each."""
    chosen = []
    for text in texts:
        before = [len(engine.requests) for engine in gateway.engines]
        assert (await gateway.ask(request(chat(text=text)))).status == 200
        [answered] = [at for at, engine in enumerate(gateway.engines) if len(engine.requests) > before[at]]
        chosen.append(answered)
    return chosen


async def test_a_talk_stays_with_its_replica() -> None:
    async with world(engines=3) as gateway:
        for engine in gateway.engines:
            engine.behave = answering
        remember(gateway, AffinityEntry())
        await gateway.until(lambda: bool(gateway.gateway.services.directory.affinities))
        first = await ask_each(gateway, TALKS)
        assert len(set(first)) == 3, "new talks take turns"
        assert await ask_each(gateway, [f"{text} and more" for text in reversed(TALKS)]) == first[::-1]


async def test_without_a_policy_replicas_take_turns() -> None:
    async with world(engines=2) as gateway:
        for engine in gateway.engines:
            engine.behave = answering
        assert len(set(await ask_each(gateway, [TALKS[0]] * 4))) == 2
        assert not gateway.gateway.services.directory.affinities


async def test_a_busy_replica_is_left_for_another() -> None:
    async with world(engines=2) as gateway:
        for engine in gateway.engines:
            engine.behave = answering
        remember(gateway, AffinityEntry(most_ahead=1))
        await gateway.until(lambda: bool(gateway.gateway.services.directory.affinities))
        [known] = await ask_each(gateway, TALKS[:1])
        held = GuidedStream()
        gateway.engines[known].behave = held
        waiting = [asyncio.create_task(gateway.ask(request(chat(text=TALKS[0])))) for _ in range(2)]
        await gateway.until(lambda: len(gateway.engines[known].requests) == 3)
        assert await ask_each(gateway, TALKS[:1]) == [1 - known]
        held.go_on.set()
        assert [answer.status for answer in await asyncio.gather(*waiting)] == [200, 200]


async def test_a_replica_that_is_gone_is_forgotten() -> None:
    async with world(engines=2) as gateway:
        for engine in gateway.engines:
            engine.behave = answering
        remember(gateway, AffinityEntry())
        await gateway.until(lambda: bool(gateway.gateway.services.directory.affinities))
        [known] = await ask_each(gateway, TALKS[:1])
        await gateway.engines[known].stop()
        assert (await gateway.ask(request(chat(text=TALKS[0])))).status == 200
        assert len(gateway.engines[1 - known].requests) == 1
