"""What needs a person: every kind, in its order, with an act that exists."""

import shlex
from datetime import timedelta

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.cli.main import cli
from corral.frontend.backends.decide.drift import Drift, DriftKind
from corral.frontend.live.decide.attention import MOST_ALIKE, AttentionKind, attention
from corral.frontend.live.decide.picture import (
    BRAKE,
    ControlHealth,
    FleetPicture,
    OutdatedBackend,
    SlowFacts,
)
from corral.frontend.live.decide.summary import summarise
from corral.frontend.nodes.decide.liveness import LivenessPolicy
from corral.frontend.nodes.decide.node import Capacity, GpuCard, Node, NodeStatus, Peer, SeenNode, Suspicion
from corral.frontend.operations.decide.operation import TargetStatus
from corral.frontend.operations.decide.reasons import ReasonCode, because
from corral.frontend.serving.decide.load_job import LoadState
from corral.wire.live import AttentionItem
from corral.wire.models import LoadReason
from tests.kit.clock import START
from tests.kit.samples import a_load_job, a_node, a_replica, after, an_operation

NOW = after(3600)
PEER = Peer(version="1.0")


def seen(status: NodeStatus = NodeStatus.HEALTHY, **fields: object) -> SeenNode:
    node: Node = a_node(**{"peer": PEER, **fields})
    return SeenNode(node=node, status=status, silent_seconds=0.0, heard_seconds_ago=0.0)


def picture(**fields: object) -> FleetPicture:
    return FleetPicture(**{"at": NOW, "policy": LivenessPolicy(), **fields})  # type: ignore[arg-type]


def only(found: list[AttentionItem]) -> AttentionItem:
    assert len(found) == 1, found
    return found[0]


def everything() -> FleetPicture:
    """One of each kind."""
    silent = seen(NodeStatus.UNHEALTHY, name="gpu-1")
    full = seen(name="gpu-2", capacity=Capacity(total_disk=10**12, available_disk=10**8))
    operation, _ = an_operation("op", "n1")
    target = replace(
        operation.targets[0],
        status=TargetStatus.BLOCKED,
        reason=because(ReasonCode.NODE_SAID, text="no"),
        changed_at=after(5),
    )
    return picture(
        nodes=(
            silent,
            full,
            seen(NodeStatus.PENDING, name="new", approved_at=None),
            seen(NodeStatus.PENDING, name="gpu-1", approved_at=None, suspicion=Suspicion.NAMESAKE),
            seen(name="peer", peer=None),
        ),
        replicas=(a_replica(node_id=silent.node.id, model="small"),),
        jobs=(a_load_job(model="large", state=LoadState.FAILED, message="the engine died"),),
        operations=(replace(operation, targets=(target,)),),
        control=ControlHealth(
            brake="3 of 4 nodes went silent together",
            problems=("NATS is not connected",),
            warnings=("the disk of the data directory is nearly full",),
            since={BRAKE: after(1)},
        ),
        slow=SlowFacts(
            drift=(
                Drift(
                    kind=DriftKind.CHANGED,
                    seen=silent,
                    backend="vllm",
                    wanted="installed",
                    has="not installed",
                    since=after(9),
                    why="vllm is not there",
                ),
            ),
            upgrades=(OutdatedBackend(backend="echo", nodes=("gpu-1",), offered="2.0", since=after(3)),),
        ),
    )


def test_every_kind_is_found_and_in_its_order() -> None:
    kinds = [item.kind for item in attention(everything())]
    assert list(dict.fromkeys(kinds)) == [kind.value for kind in AttentionKind]


def test_every_item_says_what_why_and_one_act() -> None:
    for item in attention(everything()):
        assert item.title
        assert item.why
        assert item.subject.type
        assert item.act is not None
        assert item.act.label
        assert item.act.href.startswith("/ui/")
        assert item.act.command


def test_every_command_of_an_act_exists() -> None:
    many = replace(everything(), nodes=tuple(seen(NodeStatus.UNHEALTHY) for _ in range(20)))
    for item in [*attention(everything()), *attention(many)]:
        assert item.act is not None
        words = shlex.split(item.act.command)
        assert words[0] == "corral"
        command: click.Command = cli
        for word in words[1:]:
            if not isinstance(command, click.Group):
                break
            found = command.get_command(click.Context(command), word)
            assert found is not None, item.act.command
            command = found
        assert not isinstance(command, click.Group), item.act.command
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, item.act.command


def test_a_silent_node_that_serves_a_model_is_an_alarm_and_one_that_does_not_a_warning() -> None:
    node = seen(NodeStatus.OFFLINE, name="gpu-1")
    assert only(attention(picture(nodes=(node,)))).severity == "warning"
    item = only(attention(picture(nodes=(node,), replicas=(a_replica(node_id=node.node.id, model="small"),))))
    assert (item.severity, item.title) == ("alarm", "gpu-1 is offline and serves small")


def test_a_worker_that_said_good_bye_needs_nobody() -> None:
    node = seen(NodeStatus.OFFLINE, deregistered_at=START)
    assert attention(picture(nodes=(node,))) == []


def test_a_load_that_looks_for_a_place_needs_somebody_only_after_a_while() -> None:
    job = a_load_job(state=LoadState.PENDING, reason=LoadReason.NO_PLACE, created_at=NOW - timedelta(seconds=5))
    assert attention(picture(jobs=(job,))) == []
    late = replace(job, created_at=NOW - timedelta(minutes=1))
    item = only(attention(picture(jobs=(late,))))
    assert item.title == "small finds no place"
    assert item.act is not None
    assert item.act.command == "corral why small"


def test_a_disk_is_short_when_what_is_loaded_there_needs_more() -> None:
    node = seen(name="gpu-1", capacity=Capacity(total_disk=10**12, available_disk=5 * 1024**3))
    job = a_load_job(model="large", state=LoadState.LOADING, node_id=node.node.id)
    assert attention(picture(nodes=(node,))) == []
    item = only(attention(picture(nodes=(node,), jobs=(job,), disk_needs={"large": 9 * 1024**3})))
    assert item.kind == "disk_short"
    assert "large needs 9.0 GiB" in item.why


def test_an_operation_that_somebody_dismissed_needs_nobody() -> None:
    whole = everything()
    dismissed = replace(whole.operations[0], dismissed_at=NOW)
    kinds = {item.kind for item in attention(replace(whole, operations=(dismissed,)))}
    assert "targets_blocked" not in kinds


def test_what_waits_for_a_node_is_not_blocked() -> None:
    operation, _ = an_operation("op", "n1")
    target = replace(operation.targets[0], status=TargetStatus.ERROR, waits_for_node=True)
    assert attention(picture(operations=(replace(operation, targets=(target,)),))) == []


@given(st.integers(1, 30))
def test_many_that_are_alike_are_one_item_with_their_number(count: int) -> None:
    found = attention(picture(nodes=tuple(seen(NodeStatus.UNHEALTHY) for _ in range(count))))
    if count <= MOST_ALIKE:
        assert len(found) == count
    else:
        assert (only(found).count, only(found).subject.type) == (count, "fleet")


@pytest.mark.parametrize("name", ["<b>x</b>", "a/b c", "x" * 200])
def test_ids_and_links_hold_any_name(name: str) -> None:
    job = a_load_job(model=name, state=LoadState.FAILED)
    item = only(attention(picture(jobs=(job,))))
    assert item.act is not None
    assert not set('<>" ') & set(item.act.href)
    assert item.id == f"load_failing:{name}"


def test_the_summary_counts_what_is_listed() -> None:
    whole = everything()
    items = attention(whole)
    summary = summarise(whole, items)
    assert sum(summary.attention.values()) == len(items)
    assert summary.nodes == {"pending": 2, "healthy": 2, "unhealthy": 1, "offline": 0, "draining": 0}
    assert (summary.control, summary.brake) == ("impaired", "3 of 4 nodes went silent together")
    assert (summary.replicas, summary.loaded_models, summary.operations["failed"]) == (1, 1, 1)


def test_memory_of_a_machine_with_two_workers_counts_once() -> None:
    nodes = [
        seen(
            address="10.0.0.1:21001", capacity=Capacity(total_ram=24, available_ram=20, total_vram=8, available_vram=8)
        ),
        seen(
            address="10.0.0.1:21101", capacity=Capacity(total_ram=24, available_ram=19, total_vram=8, available_vram=7)
        ),
        seen(address="10.0.0.2:21001", capacity=Capacity(total_ram=24, available_ram=24)),
    ]
    summary = summarise(picture(nodes=tuple(nodes)), [])
    assert (summary.ram.total, summary.ram.used) == (48, 5)
    assert (summary.vram.total, summary.vram.used) == (8, 1)


def in_pool(pool: str, host: str, *, free: int) -> SeenNode:
    peer = Peer(version="1", memory_pool=pool)
    return seen(address=f"{host}:21001", capacity=Capacity(total_ram=24, available_ram=free), peer=peer)


def test_workers_that_name_their_machine_share_its_memory_whatever_their_addresses_are() -> None:
    nodes = (in_pool("p", "10.0.0.1", free=20), in_pool("p", "10.0.0.2", free=19))
    assert summarise(picture(nodes=nodes), []).ram.total == 24


def test_machines_behind_one_address_all_count() -> None:
    nodes = (in_pool("p", "10.0.0.1", free=20), in_pool("q", "10.0.0.1", free=19))
    assert summarise(picture(nodes=nodes), []).ram.total == 48


@pytest.mark.parametrize("pools", [("p", ""), ("", "p")])
def test_a_worker_that_names_no_machine_is_on_that_of_another_at_its_address(pools: tuple[str, str]) -> None:
    nodes = tuple(in_pool(pool, "10.0.0.1", free=20) for pool in pools)
    assert summarise(picture(nodes=nodes), []).ram.total == 24


def test_workers_of_one_machine_that_see_different_gpus_all_count_as_vram() -> None:
    whole = Capacity(total_ram=24, available_ram=20, total_vram=8, available_vram=6)
    nodes = [
        seen(address=f"10.0.0.1:2{number}001", capacity=whole, cards=(GpuCard(id=f"GPU-{number}", total=8, free=6),))
        for number in (1, 2)
    ]
    summary = summarise(picture(nodes=tuple(nodes)), [])
    assert (summary.vram.total, summary.vram.used) == (16, 4)
    assert (summary.ram.total, summary.ram.used) == (24, 4)


def test_while_a_gateway_is_silent_nobody_knows_what_is_in_flight() -> None:
    whole = replace(everything(), in_flight={"r": 3}, is_load_known=False)
    assert summarise(whole, []).in_flight is None
