"""GPUs through the API: what nodes report of them, and what people decide."""

import asyncio
from typing import Any

import pytest

from tests.kit.frontend import REGISTRATION_TOKEN, TRUSTED_TOKEN, Frontend

GIB = 1024**3
CARDS = [
    {"id": "GPU-a", "name": "NVIDIA L4", "vendor": "nvidia", "total": 24 * GIB, "free": 20 * GIB},
    {"id": "GPU-b", "index": 1, "name": "NVIDIA L4", "vendor": "nvidia", "total": 24 * GIB, "free": 22 * GIB},
]


async def joined(frontend: Frontend, cards: object = CARDS) -> str:
    hello = {"version": "1", "features": ["cards"], "cards": cards}
    body = {"name": "w", "address": "10.0.0.1:50051", "total_vram": 48 * GIB, "available_vram": 42 * GIB}
    answer = await frontend.register({**body, "corral": hello}, token=TRUSTED_TOKEN)
    document: Any = answer.json()
    assert answer.status == 201, document
    return str(document["id"])


async def get(frontend: Frontend, url: str) -> Any:
    return (await frontend.call("GET", url)).json()


async def beat(frontend: Frontend, node_id: str, cards: object) -> None:
    body = {"corral": {"cards": cards}}
    answer = await frontend.call("POST", f"/api/node/{node_id}/heartbeat", body, key=REGISTRATION_TOKEN)
    assert answer.status == 200


async def put(frontend: Frontend, node_id: str, card: str, body: object) -> Any:
    return await frontend.call("PUT", f"/api/v1/nodes/{node_id}/cards/{card}", body)


async def test_each_gpu_is_shown_as_it_was_last_reported(frontend: Frontend) -> None:
    node_id = await joined(frontend)
    await beat(frontend, node_id, [{**CARDS[0], "free": GIB}, {**CARDS[1], "free": None}])

    cards = await get(frontend, f"/api/v1/nodes/{node_id}/cards")

    assert [(card["id"], card["free"] // GIB, card["is_out"]) for card in cards] == [
        ("GPU-a", 1, False),
        ("GPU-b", 22, False),
    ]
    assert (await get(frontend, f"/api/v1/nodes/{node_id}"))["cards"] == cards
    assert "cards" not in await get(frontend, f"/api/nodes/{node_id}"), "LocalAI's form is LocalAI's"


async def test_a_card_is_taken_out_of_service_and_put_back(frontend: Frontend) -> None:
    node_id = await joined(frontend)
    for _ in range(2):
        answer = await put(frontend, node_id, "GPU-a", {"is_out": True})
        assert answer.status == 200
        assert [card["is_out"] for card in answer.json()["cards"]] == [True, False]
    assert answer.json()["available_vram"] == 22 * GIB
    assert await joined(frontend) == node_id
    await beat(frontend, node_id, CARDS[1:])

    out = await get(frontend, f"/api/v1/nodes/{node_id}/cards")
    assert [(card["id"], card["total"] // GIB, card["is_out"]) for card in out] == [
        ("GPU-b", 24, False),
        ("GPU-a", 0, True),
    ]
    assert (await put(frontend, node_id, "GPU-a", {"is_out": False})).status == 200
    events = [event for event in await get(frontend, "/api/v1/events") if event["kind"] == "node.cards"]
    assert [(event["data"]["before"], event["data"]["after"]) for event in events] == [
        ([], ["GPU-a"]),
        (["GPU-a"], []),
    ]


async def test_changes_of_several_cards_at_once_do_not_undo_each_other(frontend: Frontend) -> None:
    node_id = await joined(frontend)
    answers = await asyncio.gather(*(put(frontend, node_id, card, {"is_out": True}) for card in ("GPU-a", "GPU-b")))

    assert [answer.status for answer in answers] == [200, 200]
    assert [card["is_out"] for card in await get(frontend, f"/api/v1/nodes/{node_id}/cards")] == [True, True]


async def test_a_card_or_node_that_is_not_there_is_refused(frontend: Frontend) -> None:
    node_id = await joined(frontend)
    answer = await put(frontend, node_id, "GPU-c", {"is_out": True})

    assert answer.status == 404
    assert "node w has no GPU 'GPU-c'; it has GPU-a, GPU-b" in answer.body.decode()
    assert (await put(frontend, "nobody", "GPU-a", {"is_out": True})).status == 404
    assert (await frontend.call("GET", "/api/v1/nodes/nobody/cards")).status == 404


@pytest.mark.parametrize("body", [b"", b"{", {}, {"is_out": None}, {"is_out": "yes"}, [True]])
async def test_a_change_that_says_nothing_is_refused(frontend: Frontend, body: object) -> None:
    node_id = await joined(frontend)

    assert (await put(frontend, node_id, "GPU-a", body)).status == 400


@pytest.mark.parametrize("cards", [5, {"id": "GPU-a"}, [5, None, {"id": ""}]])
async def test_a_node_is_not_turned_away_for_what_it_says_of_its_gpus(frontend: Frontend, cards: object) -> None:
    node_id = await joined(frontend, cards)

    node = await get(frontend, f"/api/v1/nodes/{node_id}")
    assert node["cards"] == []
    assert all(problem.startswith("corral.cards") for problem in node["problems"])
    assert node["problems"]
