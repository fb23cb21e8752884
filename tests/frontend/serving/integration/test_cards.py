"""GPUs from the driver's library to a choice of cards: found by a worker, told to a frontend, chosen for a model."""

import json
from pathlib import Path
from typing import Any

import msgspec

from corral.base.ids import NodeId
from corral.frontend.nodes.decide.node import Node
from corral.frontend.serving.decide.cards import CardRoom, CardShortage, fit_cards
from corral.wire.registration import FEATURES, CorralHello
from corral.worker.hardware.gpus import Nvidia, cards_of
from corral.worker.membership.registration import card_reports
from tests.kit.frontend import TRUSTED_TOKEN
from tests.kit.nvml import MIB, Device, Library, Memory, as_module
from tests.kit.world import World

GIB = 1024 * MIB
TWO_OF_12 = Library(
    [
        Device("NVIDIA RTX A2000 12GB", Memory(12 * GIB, int(11.4 * GIB)), uuid="GPU-aaaa"),
        Device("NVIDIA RTX A2000 12GB", Memory(12 * GIB, int(11.6 * GIB)), uuid="GPU-bbbb"),
    ]
)


async def joined(world: World, library: Library, root: Path) -> NodeId:
    """A node that registered with what its worker found in this library."""
    (root / "dev").mkdir()
    (root / "dev" / "nvidiactl").touch()
    cards = card_reports(cards_of(Nvidia(lambda: as_module(library), root=root).find(), None))
    hello = CorralHello(version="1", features=list(FEATURES), secret="s" * 40, incarnation="1", cards=cards)
    body: dict[str, Any] = {"name": "gpu-1", "address": "127.0.0.1:50051"}
    body["corral"] = json.loads(msgspec.json.encode(hello))
    answer = await world.frontend.register(body, token=TRUSTED_TOKEN)
    document: Any = answer.json()
    return NodeId(document["id"])


async def rooms(world: World, node_id: NodeId) -> list[CardRoom]:
    node: Node = (await world.control.context.nodes.fleet.get(node_id)).node
    return [CardRoom(id=card.id, free=card.free, total=card.total, is_out=card.is_out) for card in node.cards]


def fit(gib: int, cards: list[CardRoom], *, splits: bool) -> tuple[str, ...] | str:
    fitted = fit_cards(gib * GIB, per_card=0, splits=splits, cards=cards, budget_left=None)
    return fitted.message if isinstance(fitted, CardShortage) else fitted


async def test_two_cards_of_12_gb_refuse_20_unless_the_engine_splits(world: World, tmp_path: Path) -> None:
    node_id = await joined(world, TWO_OF_12, tmp_path)
    cards = await rooms(world, node_id)

    assert fit(20, cards, splits=False) == (
        "needs 20.0 GiB on one card; the largest has 11.6 GiB free of 12.0 GiB, and its engine does not split"
    )
    assert fit(20, cards, splits=True) == ("GPU-bbbb", "GPU-aaaa")
    assert fit(11, cards, splits=True) == ("GPU-aaaa",)


async def test_a_card_out_of_service_is_given_to_nobody(world: World, tmp_path: Path) -> None:
    node_id = await joined(world, TWO_OF_12, tmp_path)
    await world.control.context.nodes.registry.put_card(node_id, "GPU-aaaa", is_out=True, by="test")
    cards = await rooms(world, node_id)

    assert fit(11, cards, splits=True) == ("GPU-bbbb",)
    assert fit(20, cards, splits=True) == "needs 20.0 GiB of video memory and has 11.6 GiB free of 12.0 GiB"


def report(id: str, total: int, free: int) -> dict[str, object]:
    return {"id": id, "vendor": "nvidia", "name": "NVIDIA L4", "total": total, "free": free}


async def weights(world: World, size: int) -> None:
    """Gives the model weights of this size, of which the disk holds nothing."""
    with (world.models / "small.gguf").open("wb") as file:
        file.truncate(size)
    await world.control.context.models.watch.look()


async def test_a_load_says_why_no_card_holds_the_model(world: World) -> None:
    await weights(world, 18 * GIB)
    node = await world.node("w1", cards=[report("GPU-a", 12 * GIB, 11 * GIB), report("GPU-b", 12 * GIB, 12 * GIB)])
    await world.loads.ensure("small")
    await world.loads.tick()

    status = await world.loads.ensure("small")
    assert status.state == "pending"
    assert "GiB on one card; the largest has 12.0 GiB free of 12.0 GiB, and its engine does not split" in status.message
    assert node.installs == []


async def test_a_process_is_started_with_the_tightest_card_in_service(world: World) -> None:
    await weights(world, 4096)
    cards = [report("GPU-a", 24 * GIB, 2 * GIB), report("GPU-b", 24 * GIB, 9 * GIB), report("GPU-c", 24 * GIB, 8 * GIB)]
    node = await world.node("w1", cards=cards)
    await world.control.context.nodes.registry.put_card(node.id, "GPU-a", is_out=True, by="test")
    replica = await world.loaded()

    assert (replica.cards, {request.cards for request in node.installs}) == (("GPU-c",), {("GPU-c",)})
    shown: Any = (await world.frontend.call("GET", f"/api/v1/nodes/{node.id}/cards")).json()
    assert [(card["id"], card["replicas"]) for card in shown] == [("GPU-a", []), ("GPU-b", []), ("GPU-c", ["small#0"])]
