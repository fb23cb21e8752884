"""`corral why`, `ps` and `what-if`: where models are, why, and what a change would do."""

import time
from typing import Any

import msgspec
import pytest

from corral.wire.galleries import FleetBackends, FleetBackendView
from corral.wire.models import LoadJobView
from corral.wire.nodes import NodeDetail
from corral.wire.placement import (
    ConsequenceView,
    ModelNeedsView,
    NodeVerdictView,
    ReplicaList,
    WhatIfView,
    WhyView,
)
from corral.wire.replicas import ReplicaView

GIB = 1024**3
LONG_AGO = "2026-03-01T12:00:00Z"


def replica(model: str = "small", **changes: Any) -> ReplicaView:
    made = ReplicaView(
        id="r1",
        node_id="n1",
        node="gpu-1",
        model=model,
        index=0,
        state="loaded",
        revision="abc",
        address="10.0.0.1:50052",
        url="",
        vram=4 * GIB,
        ram=GIB,
        cards=["GPU-7"],
        why="minimum",
        in_flight=2,
        tokens_per_second=31.25,
        created_at=LONG_AGO,
        changed_at=LONG_AGO,
    )
    return msgspec.structs.replace(made, **changes)


FITS = NodeVerdictView(
    node_id="n1",
    node="gpu-1",
    code="fits",
    vram=4 * GIB,
    cards=["GPU-7"],
    points=62.5,
    score={"has the files": 40.0, "has the backend": 20.0, "free memory": 2.5},
    free=20 * GIB,
)
FULL = NodeVerdictView(
    node_id="n2",
    node="gpu-2",
    code="no_vram",
    why="needs 4.0 GiB of video memory and has 2.0 GiB free of 12.0 GiB",
    numbers={"needed": 4 * GIB, "free": 2 * GIB},
)
NEEDS = ModelNeedsView(source="file size", ram=4 * GIB, vram=4 * GIB, disk=3 * GIB)


def test_why_tells_every_node_s_verdict_with_numbers_and_points(connected: Any, frontend: Any) -> None:
    job = LoadJobView(
        state="loading",
        failures=0,
        retry_at=LONG_AGO,
        node="gpu-1",
        why="busy",
        step="stage",
        step_seconds={"place": 0.1, "stage": 12.5},
        current_bytes=GIB,
        total_bytes=3 * GIB,
        bytes_per_second=100 * 1024**2,
        eta_seconds=20.0,
        file_index=1,
        total_files=2,
        file="small.gguf",
        began_at=LONG_AGO,
    )
    view = WhyView(
        model="small",
        asked="short",
        summary="small is loaded on gpu-1",
        needs=NEEDS,
        verdicts=[FITS, FULL],
        replicas=[replica()],
        jobs=[job],
    )
    frontend.tell("GET /api/v1/models/short/why", view)
    outcome = connected("why", "short")

    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[:2] == ["small is loaded on gpu-1", "short is an alias of it."]
    assert (
        "Needs    4.0 GiB of memory, 4.0 GiB of video memory where there are GPUs, 3.0 GiB of files (from: file size)"
        in lines
    )
    assert any(
        "gpu-1 #0 loaded" in line and "counts with 4.0 GiB of video memory and 1.0 GiB of memory" in line
        for line in lines
    )
    load = next(line for line in lines if line.startswith("Load"))
    assert "loading on gpu-1, wanted: busy" in load
    assert "place 0.1 s, stage 12.5 s; 1.0 GiB of 3.0 GiB, file 1 of 2 (small.gguf), 100 MiB/s, 20 s left" in load
    assert [" ".join(line.split()) for line in lines[-3:]] == [
        "NODE VERDICT NEEDS FREE POINTS WHY",
        "gpu-1 Fits 4.0 GiB 20.0 GiB 62.5 has the files +40, has the backend +20, free memory +2.5, would get GPU-7",
        "gpu-2 No VRAM 4.0 GiB 2.0 GiB – needs 4.0 GiB of video memory and has 2.0 GiB free of 12.0 GiB",
    ]
    assert connected("why", "short", "--json").json() == msgspec.to_builtins(view)


@pytest.mark.parametrize(
    ("is_permanent", "told"),
    [
        (True, "not tried again until the model, its files or its engine change"),
        (False, "tried again when asked, 2026-"),
    ],
)
def test_why_tells_what_comes_after_a_failure(connected: Any, frontend: Any, is_permanent: bool, told: str) -> None:
    job = LoadJobView(
        state="failed",
        failures=1,
        retry_at=LONG_AGO,
        message="gpu-1: out of memory",
        engine_lines=["CUDA error"],
        is_permanent=is_permanent,
        began_at=LONG_AGO,
    )
    unknown = ModelNeedsView(source="not known")
    frontend.tell(
        "GET /api/v1/models/a%2Fb/why",
        WhyView(model="a/b", asked="a/b", summary="no node has joined yet", needs=unknown, verdicts=[], jobs=[job]),
    )
    outcome = connected("why", "a/b")

    assert "gpu-1: out of memory" in outcome.out
    assert told in outcome.out
    assert "CUDA error" in outcome.out
    assert "not known; its engine decides" in outcome.out


def test_ps_tells_memory_requests_and_speed_and_what_is_not_known(
    connected: Any, frontend: Any, make_node: Any
) -> None:
    silent = replica(
        "other", vram=0, ram=0, cards=[], in_flight=None, tokens_per_second=None, node="cpu-1", node_id="n2"
    )
    coming = replica("third", state="staging", in_flight=0, tokens_per_second=None)
    frontend.tell("GET /api/v1/replicas", ReplicaList(items=[replica(), silent, coming]))
    head, *rows = [line.split() for line in connected("ps").out.splitlines()]

    assert head == ["MODEL", "NODE", "STATE", "MEMORY", "IN", "FLIGHT", "TOKENS/S", "IDLE", "AGE", "GPUS", "WANTED"]
    assert rows[0][:10] == ["small", "gpu-1", "Loaded", "4.0", "GiB", "+", "1.0", "GiB", "2", "31.2"]
    assert rows[0][-2:] == ["GPU-7", "minimum"]
    assert rows[1][:6] == ["other", "cpu-1", "Loaded", "unknown", "unknown", "unknown"]
    assert rows[2][3:11] == ["4.0", "GiB", "+", "1.0", "GiB", "–", "–", "–"]
    frontend.tell_nodes(make_node("gpu-1", "n1"), make_node("cpu-1", "n2"))
    assert [line.split()[0] for line in connected("ps", "--node", "cpu-1").out.splitlines()[1:]] == ["other"]
    frontend.tell("GET /api/v1/models/idle", {"name": "idle"})
    assert connected("ps", "--model", "idle").out == "Nothing runs there.\n"
    assert len(connected("ps", "--json").json()["items"]) == 3
    assert connected("ps", "--json", "--watch").code == 64
    frontend.tell("GET /api/v1/replicas", ReplicaList(items=[]))
    assert connected("ps").out == "Nothing runs; a model is loaded when somebody asks for it.\n"


@pytest.mark.parametrize(("words", "row"), [(("ps", "--watch"), "small"), (("nodes", "list", "--watch"), "gpu-1")])
def test_what_is_watched_is_looked_at_again_until_ctrl_c(
    connected: Any, frontend: Any, make_node: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], row: str
) -> None:
    frontend.tell("GET /api/v1/replicas", ReplicaList(items=[replica()]))
    frontend.tell_nodes(make_node("gpu-1", "n1"))
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", pause)
    outcome = connected(*words)

    assert (outcome.code, outcome.err, pauses) == (0, "", [1.0, 1.0, 1.0])
    assert row in outcome.out
    assert len(frontend.calls) == 3


@pytest.mark.parametrize("watch", [(), ("--watch",)])
def test_ps_refuses_names_that_nobody_has(
    connected: Any, frontend: Any, make_node: Any, watch: tuple[str, ...]
) -> None:
    frontend.tell("GET /api/v1/replicas", ReplicaList(items=[]))
    frontend.tell("GET /api/v1/models/nobody", {"error": {"message": "the model 'nobody' does not exist"}}, 404)
    frontend.tell_nodes(make_node("worker-1", "n1"))
    model, node = connected("ps", "--model", "nobody", *watch), connected("ps", "--node", "worker-2", *watch)
    assert (model.code, model.err) == (1, "error: the model 'nobody' does not exist\n")
    assert (node.code, node.err) == (1, "error: there is no node worker-2; did you mean worker-1?\n")


def test_what_if_asks_for_the_node_that_was_meant_and_ends_with_1_when_something_is_lost(
    connected: Any, frontend: Any, make_node: Any
) -> None:
    moves = ConsequenceView(model="small", fate="moves", node="w1", to_node="w2", is_interrupted=True)
    lost = ConsequenceView(model="huge", fate="service_lost", node="w1", why="w2 has 1.0 GiB free", is_curable=True)
    node: NodeDetail = make_node("w1", "n1")
    frontend.tell_nodes(node)
    frontend.tell("POST /api/v1/what-if", WhatIfView(change="w1 goes down", summary="bad", consequences=[moves, lost]))
    outcome = connected("what-if", "node", node.name, "down")

    assert outcome.code == 1
    assert frontend.calls[-1].body["node"] == node.id
    assert frontend.calls[-1].body["becomes"] == "down"
    assert outcome.out.splitlines()[0] == "If w1 goes down: bad"
    assert [" ".join(line.split()) for line in outcome.out.splitlines()[-2:]] == [
        "small Moves w1 w2 does not answer until it is loaded there",
        "huge Service lost w1 – w2 has 1.0 GiB free; would have a place if something else ended",
    ]


def test_what_if_of_models_and_backends(connected: Any, frontend: Any) -> None:
    frontend.tell("POST /api/v1/what-if", WhatIfView(change="small has 3 replicas", summary="nothing would change"))
    llama = FleetBackendView(name="llama-cpp", is_meta=False, nodes=[])
    frontend.tell("GET /api/v1/backends", FleetBackends(items=[llama]))

    assert (
        connected("what-if", "model", "small", "scaled", "3").out == "If small has 3 replicas: nothing would change\n"
    )
    assert (frontend.calls[-1].body["model"], frontend.calls[-1].body["replicas"]) == ("small", 3)
    assert connected("what-if", "backend", "llama-cpp", "deleted").code == 0
    assert (frontend.calls[-1].body["backend"], frontend.calls[-1].body["becomes"]) == ("llama-cpp", "deleted")
    assert "no node is known to have llama-cpp" not in connected("what-if", "backend", "llama-cpp", "deleted").err
    assert "no node is known to have llama-cp; did you mean llama-cpp?" in (
        connected("what-if", "backend", "llama-cp", "deleted").err
    )
    assert connected("what-if", "model", "small", "scaled", "many").code == 64
    assert connected("what-if", "backend", "llama-cpp", "upgraded").code == 64
