"""`corral nodes`: what people see, what machines get, and which calls are made."""

import io
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from corral.base.errors import Conflict, InvalidInput, NotFound
from corral.cli.names import choose_node
from corral.cli.nodes.commands import read_label_changes
from corral.cli.nodes.tables import change_lines, node_facts, node_table
from corral.wire.nodes import CardView, NodeChangeView, NodeDetail, NodePage, PeerView
from corral.wire.plans import ActPlanView

MakeNode = Callable[..., NodeDetail]
ONE = "11111111-0000-4000-8000-000000000000"
TWO = "22222222-0000-4000-8000-000000000000"
THREE = "22333333-0000-4000-8000-000000000000"
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def fleet(make_node: MakeNode) -> list[NodeDetail]:
    return [
        make_node("alpha", ONE, labels={"node.name": "alpha", "zone": "a"}),
        make_node("beta", TWO, status="pending", approved=False, heard_seconds_ago=75.0, corral=None, total_ram=0),
        make_node("gamma", THREE, status="unhealthy", draining=True, problems=["disk: not a number"]),
    ]


def rendered(content: object, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(content)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


class TestList:
    def test_is_a_plain_table_in_a_pipe(self, connected: Any, frontend: Any, fleet: Any) -> None:
        frontend.tell_nodes(*fleet)
        outcome = connected("nodes", "list")
        assert outcome.code == 0
        assert outcome.err == ""
        assert outcome.out.splitlines() == [
            "NAME   STATUS                  ID        HEARD       ADDRESS         RAM FREE            "
            "DISK FREE            VERSION       LABELS",
            "alpha  Healthy                 11111111  3s ago      10.0.0.1:50051  5.0 GiB of 8.0 GiB  "
            "60.0 GiB of 100 GiB  corral 0.1.0  zone=a",
            "beta   Pending                 22222222  1m 15s ago  10.0.0.1:50051  –                   "
            "60.0 GiB of 100 GiB  localai",
            "gamma  Unhealthy (draining) !  22333333  3s ago      10.0.0.1:50051  5.0 GiB of 8.0 GiB  "
            "60.0 GiB of 100 GiB  corral 0.1.0",
        ]

    def test_an_alarm_of_the_fleet_is_told_beside_the_table(self, connected: Any, frontend: Any, fleet: Any) -> None:
        page = NodePage(items=fleet, next_cursor=None, alarm="3 of 3 nodes went silent together")
        frontend.tell("GET /api/v1/nodes", page)
        outcome = connected("nodes", "list", "--json")
        assert len(outcome.json()["items"]) == len(fleet)
        assert "ALARM: 3 of 3 nodes went silent together; nothing is evicted or rescheduled" in outcome.err
        assert "ALARM" not in connected("nodes", "show", fleet[0].id).err

    def test_fits_narrow_terminals_by_leaving_columns_out(self, fleet: list[NodeDetail]) -> None:
        assert rendered(node_table(fleet[:1], width=40), 40) == ["NAME   STATUS   ID", "alpha  Healthy  11111111"]
        for width in range(20, 200, 7):
            assert all(len(line) <= width for line in rendered(node_table(fleet, width=width), width))

    def test_as_json_is_json_and_nothing_else(self, connected: Any, frontend: Any, fleet: Any) -> None:
        frontend.tell_nodes(*fleet)
        outcome = connected("nodes", "list", "--json")
        assert [node["name"] for node in outcome.json()["items"]] == ["alpha", "beta", "gamma"]
        assert outcome.err == ""

    def test_filters_are_the_frontends(self, connected: Any, frontend: Any) -> None:
        frontend.tell_nodes()
        outcome = connected("nodes", "list", "--status", "healthy", "--status", "pending", "--label", "zone=a b")
        assert outcome.out == "No node fits.\n"
        [call] = frontend.calls
        assert call.path == "/api/v1/nodes?status=healthy&status=pending&label=zone%3Da+b&limit=1000"
        assert call.headers["Authorization"] == "Bearer corral_key-of-this-test"

    def test_all_pages_are_read(self, connected: Any, frontend: Any, fleet: Any) -> None:
        frontend.tell("GET /api/v1/nodes", NodePage(items=fleet[:1], next_cursor="c 1"))
        frontend.tell("GET /api/v1/nodes?limit=1000&cursor=c+1", NodePage(items=fleet[1:], next_cursor=None))
        assert len(connected("nodes", "list", "--json").json()["items"]) == 3

    def test_of_an_empty_fleet_says_what_to_do(self, connected: Any, frontend: Any) -> None:
        frontend.tell_nodes()
        assert connected("nodes", "list").out == "No node has registered yet; `corral worker` starts one.\n"

    def test_an_unknown_status_is_refused_before_any_call(self, connected: Any, frontend: Any) -> None:
        outcome = connected("nodes", "list", "--status", "sleepy")
        assert outcome.code == 64
        assert "'sleepy' is not one of 'pending', 'healthy'" in outcome.err
        assert frontend.calls == []

    def test_names_of_strangers_cannot_play_with_the_terminal(
        self, connected: Any, frontend: Any, make_node: Any
    ) -> None:
        frontend.tell_nodes(make_node("[red]\x1b[31mevil\n", ONE))
        out = connected("nodes", "list").out
        assert "\x1b" not in out
        assert "[red]�[31mevil�" in out

    def test_watch_and_json_exclude_each_other(self, connected: Any) -> None:
        outcome = connected("nodes", "list", "--watch", "--json")
        assert outcome.code == 64
        assert "events --follow --json" in outcome.err


class TestShow:
    def test_tells_everything(self, fleet: list[NodeDetail], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TZ", "UTC")
        time.tzset()
        assert rendered(node_facts(fleet[2], NOW), 80) == [
            "Name          gamma",
            "Id            22333333-0000-4000-8000-000000000000",
            "Status        Unhealthy",
            "Problems      disk: not a number",
            "Type          backend",
            "Address       10.0.0.1:50051",
            "HTTP address  10.0.0.1:50050",
            "Software      corral 0.1.0",
            "Heard         3s ago, beats every 10 s",
            "Approved      by admin, 2026-03-01 11:05:00 (55m 0s ago)",
            "Draining      –",
            "RAM free      5.0 GiB of 8.0 GiB",
            "Disk free     60.0 GiB of 100 GiB",
            "Replicas      at most 1 of one model",
            "Labels        node.name=gamma",
            "Own secret    yes",
            "NATS login    its own",
            "Registered    2026-03-01 11:00:00 (1h 0m ago)",
        ]

    @pytest.mark.parametrize(
        ("features", "login", "says"),
        [
            ([], None, "upgrade it"),
            (["nats-user"], None, "restart it"),
            (["nats-user"], "shared", "remove nats_jwt and nats_seed"),
        ],
    )
    def test_of_a_worker_without_a_nats_user_of_its_own_tells_what_to_do(
        self, make_node: Any, features: list[str], login: str | None, says: str
    ) -> None:
        peer = PeerView(version="0.2.0", features=features)
        lines = rendered(node_facts(make_node("old", ONE, nats_login=login, corral=peer), NOW), 200)
        (line,) = [line for line in lines if line.startswith("NATS login")]
        assert line.endswith(says)

    def test_of_a_machine_with_gpus_tells_their_memory_and_which_builds_suit(self, make_node: Any) -> None:
        node = make_node(
            "gpu",
            ONE,
            gpu_vendor="nvidia",
            gpu_compute_capability="8.9",
            total_vram=24 * 1024**3,
            available_vram=20 * 1024**3,
            capability="nvidia-cuda-13",
        )
        told = rendered(node_facts(node, NOW), 80)
        assert "VRAM free     20.0 GiB of 24.0 GiB" in told
        assert "GPU           nvidia 8.9" in told
        assert "Builds for    nvidia-cuda-13" in told

    def test_of_a_pending_node_names_the_command_that_approves_it(self, fleet: list[NodeDetail]) -> None:
        assert "Approved      no; run: corral nodes approve 22222222" in rendered(node_facts(fleet[1], NOW), 80)


class TestWhichNode:
    @pytest.mark.parametrize(
        ("reference", "expected"),
        [(ONE, "alpha"), ("1", "alpha"), ("beta", "beta"), ("2222", "beta"), ("2233", "gamma")],
    )
    def test_is_an_id_its_beginning_or_a_name(self, fleet: list[NodeDetail], reference: str, expected: str) -> None:
        assert choose_node(fleet, reference).name == expected

    def test_a_name_wins_over_the_beginning_of_an_id(self, fleet: list[NodeDetail], make_node: MakeNode) -> None:
        assert choose_node([*fleet, make_node("1", "99999999")], "1").id == "99999999"

    def test_an_ambiguous_beginning_lists_the_candidates(self, fleet: list[NodeDetail]) -> None:
        with pytest.raises(Conflict) as refused:
            choose_node(fleet, "22")
        assert (
            str(refused.value) == f"22 may mean {TWO} (beta, pending), {THREE} (gamma, unhealthy); name one by its id"
        )

    def test_an_ambiguous_name_lists_the_candidates(self, fleet: list[NodeDetail], make_node: MakeNode) -> None:
        with pytest.raises(Conflict, match="alpha may mean"):
            choose_node([*fleet, make_node("alpha", "9")], "alpha")

    @pytest.mark.parametrize(
        ("reference", "sentence"),
        [
            ("alpa", "there is no node alpa; did you mean alpha?"),
            ("zzz", "there is no node zzz; `corral nodes list` shows all"),
            ("", "there is no node ; `corral nodes list` shows all"),
        ],
    )
    def test_an_unknown_one_offers_near_names(self, fleet: list[NodeDetail], reference: str, sentence: str) -> None:
        with pytest.raises(NotFound) as refused:
            choose_node(fleet, reference)
        assert str(refused.value) == sentence

    def test_in_an_empty_fleet_says_that_it_is_empty(self) -> None:
        with pytest.raises(NotFound, match="no node has registered yet"):
            choose_node([], "alpha")


@pytest.mark.parametrize(
    ("verb", "sentence"),
    [
        ("approve", "is approved"),
        ("drain", "is draining"),
        ("resume", "is no longer draining"),
    ],
)
def test_steering_calls_the_route_and_tells_the_outcome(
    connected: Any, frontend: Any, fleet: Any, verb: str, sentence: str
) -> None:
    frontend.tell_nodes(*fleet)
    frontend.tell(f"POST /api/v1/nodes/{ONE}/{verb}", fleet[0])
    outcome = connected("nodes", verb, "alpha")
    assert outcome.out == f"alpha ({ONE}) {sentence}; its status is healthy\n"
    assert connected("nodes", verb, "alpha", "--json").json()["id"] == ONE


def test_a_conflict_is_told_in_the_frontends_words(connected: Any, frontend: Any, fleet: Any) -> None:
    frontend.tell_nodes(*fleet)
    frontend.tell(
        f"POST /api/v1/nodes/{ONE}/approve", {"error": {"code": "conflict", "message": "alpha is not pending"}}, 409
    )
    outcome = connected("nodes", "approve", "alpha")
    assert (outcome.code, outcome.err) == (1, "error: alpha is not pending\n")


class TestRemove:
    def test_refuses_without_a_terminal_to_ask_on(
        self, connected: Any, frontend: Any, fleet: Any, monkeypatch: Any
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
        frontend.tell_nodes(*fleet)
        outcome = connected("nodes", "remove", "alpha")
        assert outcome.code == 64
        assert outcome.err == "error: --yes: is needed here, because there is no terminal to ask on\n"
        assert [call.method for call in frontend.calls] == ["GET"]

    def test_shows_what_would_happen_and_acts_on_that_plan_only(
        self, connected: Any, frontend: Any, fleet: Any, monkeypatch: Any
    ) -> None:
        frontend.tell_nodes(*fleet)
        plan = ActPlanView(hash="h1", text="Remove alpha: 1 moves.\nMoves: small on alpha, to beta")
        frontend.tell(f"POST /api/v1/nodes/{ONE}/removal/plan", plan)
        frontend.tell(f"DELETE /api/v1/nodes/{ONE}?plan_hash=h1", b"", 204)
        alone = connected("nodes", "remove", "alpha", "--plan")
        assert (alone.code, alone.out.splitlines()) == (0, plan.text.splitlines())
        assert {call.method for call in frontend.calls} == {"GET", "POST"}
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        monkeypatch.setattr("click.confirm", lambda *_, **__: True)
        outcome = connected("nodes", "remove", "alpha")
        assert (outcome.code, outcome.err.splitlines()) == (0, plan.text.splitlines())

    def test_removes_with_yes(self, connected: Any, frontend: Any, fleet: Any) -> None:
        frontend.tell_nodes(*fleet)
        frontend.tell(f"DELETE /api/v1/nodes/{ONE}", b"", 204)
        assert connected("nodes", "remove", "1", "--yes").out == f"alpha ({ONE}) is removed\n"
        assert connected("nodes", "remove", "1", "--yes", "--json").json() == {"removed": ONE}


class TestLabel:
    def test_sets_and_removes(self, connected: Any, frontend: Any, fleet: Any, make_node: Any) -> None:
        frontend.tell_nodes(*fleet)
        after = make_node("alpha", ONE, labels={"disk": "fast"})
        frontend.tell(f"PATCH /api/v1/nodes/{ONE}/labels", after)
        frontend.tell(f"DELETE /api/v1/nodes/{ONE}/labels/zone", after)
        frontend.tell(f"GET /api/v1/nodes/{ONE}", after)
        outcome = connected("nodes", "label", "alpha", "disk=fast", "zone-")
        assert outcome.out == f"Labels of alpha ({ONE}): disk=fast\n"
        assert [(call.method, call.body) for call in frontend.calls[1:3]] == [
            ("PATCH", {"disk": "fast"}),
            ("DELETE", None),
        ]

    def test_a_label_that_is_not_there_changes_nothing(self, connected: Any, frontend: Any, fleet: Any) -> None:
        frontend.tell_nodes(*fleet)
        outcome = connected("nodes", "label", "alpha", "disk=fast", "rack-")
        assert (outcome.code, outcome.err) == (1, "error: alpha has no label rack; nothing was changed\n")
        assert [call.method for call in frontend.calls] == ["GET"]

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            (["a=b"], ({"a": "b"}, [])),
            (["a="], ({"a": ""}, [])),
            (["a=b=c", "d-"], ({"a": "b=c"}, ["d"])),
            (["a=b-"], ({"a": "b-"}, [])),
        ],
    )
    def test_grammar(self, changes: list[str], expected: object) -> None:
        assert read_label_changes(changes) == expected

    @pytest.mark.parametrize("changes", [["a"], ["-"], ["=b"], [""], ["a=b", "a-"]])
    def test_anything_else_is_refused(self, changes: list[str]) -> None:
        with pytest.raises(InvalidInput):
            read_label_changes(changes)


GIB = 1024**3
CARDS = [
    CardView(
        id="GPU-aa",
        index=0,
        name="NVIDIA L4",
        vendor="nvidia",
        total=24 * GIB,
        free=20 * GIB,
        replicas=["small#0", "m#1"],
    ),
    CardView(id="GPU-ab", index=1, name="NVIDIA L4", vendor="nvidia", total=24 * GIB, free=22 * GIB, is_out=True),
    CardView(id="tegra-0", name="Orin", vendor="nvidia", total=32 * GIB, free=16 * GIB, shares_ram=True),
    CardView(id="GPU-gone", name="", vendor="", total=0, free=0, is_out=True),
]


class TestCards:
    def test_is_a_table_with_the_replicas_of_each(self, connected: Any, frontend: Any, fleet: Any) -> None:
        frontend.tell_nodes(*fleet)
        frontend.tell(f"GET /api/v1/nodes/{ONE}/cards", CARDS)
        outcome = connected("nodes", "cards", "alpha")
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out.splitlines() == [
            "GPU  ID        NAME       FREE                        REPLICAS      STATE",
            "0    GPU-aa    NVIDIA L4  20.0 GiB of 24.0 GiB        small#0, m#1  in service",
            "1    GPU-ab    NVIDIA L4  22.0 GiB of 24.0 GiB        –             out of service",
            "–    tegra-0   Orin       16.0 GiB of 32.0 GiB (RAM)  –             in service",
            "–    GPU-gone             –                           –             out of service, gone",
        ]
        assert [card["id"] for card in connected("nodes", "cards", "alpha", "--json").json()["items"]] == [
            card.id for card in CARDS
        ]

    def test_a_node_that_tells_only_sums_has_none(self, connected: Any, frontend: Any, fleet: Any) -> None:
        frontend.tell_nodes(*fleet)
        frontend.tell(f"GET /api/v1/nodes/{ONE}/cards", [])
        assert connected("nodes", "cards", "alpha").out == "alpha tells of no GPU one by one.\n"

    @pytest.mark.parametrize(
        ("word", "flag", "id", "sentence"),
        [
            ("GPU-aa", "--out", "GPU-aa", "out of service; what uses it goes on"),
            ("tegra", "--out", "tegra-0", "out of service; what uses it goes on"),
            ("GPU-g", "--in", "GPU-gone", "in service"),
        ],
    )
    def test_one_is_taken_out_or_put_back(
        self, connected: Any, frontend: Any, fleet: Any, word: str, flag: str, id: str, sentence: str
    ) -> None:
        frontend.tell_nodes(*fleet)
        frontend.tell(f"GET /api/v1/nodes/{ONE}/cards", CARDS)
        frontend.tell(f"PUT /api/v1/nodes/{ONE}/cards/{id}", fleet[0])
        assert connected("nodes", "card", "alpha", word, flag).out == f"{id} of alpha ({ONE}) is {sentence}\n"
        assert frontend.calls[-1].body == {"is_out": flag == "--out"}

    @pytest.mark.parametrize(
        ("word", "flags", "problem"),
        [
            ("GPU-a", ["--out"], "'GPU-a' means several: GPU-aa, GPU-ab"),
            ("GPU-x", ["--out"], "alpha has no GPU 'GPU-x'; it has GPU-aa, GPU-ab, tegra-0, GPU-gone"),
            ("GPU-aa", [], "--out"),
        ],
    )
    def test_what_is_not_clear_changes_nothing(
        self, connected: Any, frontend: Any, fleet: Any, word: str, flags: list[str], problem: str
    ) -> None:
        frontend.tell_nodes(*fleet)
        frontend.tell(f"GET /api/v1/nodes/{ONE}/cards", CARDS)
        outcome = connected("nodes", "card", "alpha", word, *flags)
        assert outcome.code != 0
        assert problem in outcome.err
        assert all(call.method == "GET" for call in frontend.calls)

    def test_the_facts_of_a_node_name_them(self, make_node: MakeNode) -> None:
        lines = rendered(node_facts(make_node("alpha", ONE, cards=CARDS[:2]), NOW), 100)
        [at] = [number for number, line in enumerate(lines) if line.startswith("GPUs")]
        assert [line.split(maxsplit=1)[-1] for line in (lines[at], f"- {lines[at + 1].strip()}")] == [
            "GPU-aa 20.0 GiB of 24.0 GiB",
            "GPU-ab 22.0 GiB of 24.0 GiB, out of service",
        ]


def test_fingerprints_are_listed_while_somebody_has_to_compare_them(make_node: Any) -> None:
    known = make_node("alpha", ONE, fingerprint="AAAA-BBBB-CCCC-DDDD")
    titles = [str(column.header) for column in node_table([known]).columns]
    assert "FINGERPRINT" not in titles
    waiting = make_node("beta", TWO, fingerprint="EEEE-FFFF-GGGG-HHHH", approved=False, status="pending")
    titles = [str(column.header) for column in node_table([known, waiting]).columns]
    assert "FINGERPRINT" in titles


def test_approve_tells_the_fingerprint(connected: Any, frontend: Any, make_node: Any) -> None:
    node = make_node("beta", TWO, fingerprint="EEEE-FFFF-GGGG-HHHH")
    frontend.tell_nodes(node)
    frontend.tell(f"POST /api/v1/nodes/{node.id}/approve", node)
    assert "fingerprint EEEE-FFFF-GGGG-HHHH, is approved" in connected("nodes", "approve", "beta").out


def test_changes_of_a_node_are_shown_with_both_states() -> None:
    moved = NodeChangeView(
        at="2026-03-01T12:00:05Z", kind="node.moved", before={"address": "a:1"}, after={"address": "b:1"}
    )
    changed = NodeChangeView(
        at="2026-03-01T12:00:05Z",
        kind="node.changed",
        before={"gpus": {"GPU-a": 24 * 1024**3}, "total_ram": 64 * 1024**3, "name": "same", "labels": {"zone": "1"}},
        after={"gpus": {}, "total_ram": 32 * 1024**3, "name": "same", "labels": {"zone": "2"}},
    )
    now = datetime(2026, 3, 1, 14, 5, 10, tzinfo=UTC)

    assert change_lines(moved, now).splitlines()[1:] == ["  address: a:1 → b:1"]
    head, *lines = change_lines(changed, now).splitlines()
    assert head.startswith("changed 2026-03-01 ")
    assert head.endswith("(2h 5m ago)")
    assert lines == [
        "  gpus: GPU-a 24.0 GiB → none",
        "  total_ram: 64.0 GiB → 32.0 GiB",
        "  labels: zone 1 → zone 2",
    ]
