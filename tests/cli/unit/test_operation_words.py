"""What is said about operations: true of each status, with what to do next, and an exit code for scripts."""

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from corral.cli.operations.bars import FileSpeeds, bars, targets_to_show
from corral.cli.operations.commands import operation_facts, operation_table, target_table
from corral.cli.operations.watch import overall_code
from corral.cli.operations.words import (
    accepted,
    advice,
    counts,
    exit_code,
    is_over,
    problems,
    situation,
    summary,
    what_next,
)
from corral.frontend.operations.decide.operation import OperationState, TargetStatus
from corral.frontend.operations.decide.reasons import Reason, ReasonCode, because
from corral.processes.exit_codes import ExitCode
from corral.wire.operation_views import FileShareView, OperationView

NOW = datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)
MIB = 1024**2


def rendered(content: object, width: int = 110) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(content)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("state", "code"),
    [("done", 0), ("waiting", 0), ("failed", 1), ("cancelled", 1), ("running", 2), ("a word of tomorrow", 2)],
)
def test_every_state_has_its_exit_code(make_operation: Any, state: str, code: int) -> None:
    assert exit_code(make_operation(state=state)) == code


def test_no_state_is_without_an_exit_code(make_operation: Any) -> None:
    codes = {state: exit_code(make_operation(state=state)) for state in OperationState}
    assert codes.keys() == set(OperationState)


def test_code_2_is_not_that_of_a_wrong_flag(connected: Any) -> None:
    assert connected("backends", "install", "--nonsense").code == ExitCode.USAGE != ExitCode.STILL_RUNNING == 2


@pytest.mark.parametrize(
    ("codes", "wait", "code"),
    [
        ([], True, 0),
        ([ExitCode.OK, ExitCode.STILL_RUNNING], True, 2),
        ([ExitCode.OK, ExitCode.STILL_RUNNING], False, 0),
        ([ExitCode.STILL_RUNNING, ExitCode.FAILED], True, 1),
        ([ExitCode.STILL_RUNNING, ExitCode.FAILED], False, 1),
    ],
)
def test_of_several_operations_the_worst_code_counts(codes: list[ExitCode], wait: bool, code: int) -> None:
    assert overall_code(codes, wait=wait) == code


def proven(rung: str) -> Reason:
    return because(ReasonCode.PROVEN, rung=rung)


def already(rung: str) -> Reason:
    return because(ReasonCode.ALREADY, rung=rung)


@pytest.mark.parametrize(
    ("status", "changes", "told"),
    [
        ("queued", {}, "about to be sent"),
        ("queued", {"waits_for_node": True}, "waits for the node to come back"),
        ("error", {"waits_for_node": True, "message": "no"}, "waits for the node to come back; last: no"),
        ("downloading", {}, "the node was asked to delete it"),
        ("downloading", {"phase": "unpacking", "file_name": "x.tar"}, "unpacking x.tar"),
        ("downloading", {"phase": "resolving", "file_name": "Resolving x"}, "Resolving x"),
        (
            "downloading",
            {"phase": "downloading", "current_bytes": 3 * MIB, "total_bytes": 9 * MIB},
            "downloading 3.0 MiB of 9.0 MiB",
        ),
        ("running_on_worker", {}, "no answer in time; the node may still be working"),
        (
            "success",
            {"reason": proven("digest")},
            "its report shows it, with the right digest",
        ),
        ("success", {"reason": proven("absent")}, "its report no longer shows it"),
        ("success", {"reason": already("absent")}, "nothing was asked: it was not there"),
        ("success", {"reason": proven("in a new way")}, "in a new way"),
        ("success", {"message": "digest"}, "digest"),  # from a frontend that sends no codes
        ("error", {"message": "disk full", "attempts": 1}, "disk full (tried once)"),
        ("error", {"message": "disk full", "attempts": 3}, "disk full (tried 3 times)"),
        ("blocked", {"message": "no build for arm64"}, "no build for arm64"),
        ("superseded", {}, "a newer operation wants something else there"),
        ("cancelled", {"message": "cancelled by eve"}, "cancelled by eve"),
    ],
)
def test_words_are_true_of_each_target(make_target: Any, status: str, changes: dict[str, Any], told: str) -> None:
    assert situation(make_target("w1", status, **changes), "delete") == told


@pytest.mark.parametrize(
    ("verb", "first", "second", "told"),
    [
        (
            "delete",
            already("absent"),
            already("absent"),
            "echo: no node that was meant has it; nothing was deleted.",
        ),
        (
            "delete",
            proven("absent"),
            already("absent"),
            "echo: deleted on w1; was not on w2.",
        ),
        (
            "upgrade",
            already("digest"),
            already("digest"),
            "echo: is the newest already on 2 nodes; nothing was changed.",
        ),
        (
            "upgrade",
            proven("digest"),
            already("digest"),
            "echo: upgraded on w1; is the newest already on w2.",
        ),
        (
            "install",
            already("present"),
            already("present"),
            "echo: was there already on 2 nodes; nothing was fetched.",
        ),
        (
            "install",
            proven("present"),
            already("present"),
            "echo: installed on w1; was there already on w2.",
        ),
    ],
)
def test_what_was_so_already_is_not_called_done(
    make_operation: Any,
    make_target: Any,
    verb: str,
    first: tuple[ReasonCode, str],
    second: tuple[ReasonCode, str],
    told: str,
) -> None:
    targets = [make_target(f"w{number}", "success", reason) for number, reason in enumerate((first, second), 1)]
    assert summary(make_operation(*targets, verb=verb)) == told


@pytest.mark.parametrize(("verb", "word"), [("delete", "deleting"), ("remove", "removing"), ("install", "downloading")])
def test_a_delete_is_not_called_a_download(make_operation: Any, make_target: Any, verb: str, word: str) -> None:
    moving = make_operation(make_target("w1", "downloading"), verb=verb)
    assert counts(moving) == f"1 {word}"
    lines = [*rendered(bars(moving, FileSpeeds(), height=20)), *rendered(target_table(moving, NOW, width=110))]
    assert word.capitalize() in "\n".join(lines)
    assert ("ownloading" in "\n".join(lines)) == (word == "downloading")


@pytest.mark.parametrize("status", list(TargetStatus))
def test_every_status_but_success_says_what_to_do(make_operation: Any, make_target: Any, status: str) -> None:
    found = advice(make_operation(make_target("w1", status)))
    assert [names for names, _ in found] == ([] if status == "success" else ["w1"])


def test_nodes_in_the_same_plight_share_their_advice(make_operation: Any, make_target: Any) -> None:
    many = [make_target(f"w{number}", "error") for number in range(1, 8)]
    away = make_target("z", "queued", waits_for_node=True)
    (failed, waiting) = advice(make_operation(*many, make_target("x", "success"), away))
    assert failed[0] == "w1, w2, w3, w4, w5 and 2 more"
    assert failed[1].endswith("corral ops retry 0123abcd; if it is not wanted after all: corral ops cancel 0123abcd")
    assert waiting == (
        "z",
        "Nothing to do: the node gets it with its first heartbeat. If it never comes back, remove it (corral nodes "
        "remove), or take it back: corral ops cancel 0123abcd",
    )


def test_a_node_whose_word_and_report_differ_is_not_said_to_complain(make_operation: Any, make_target: Any) -> None:
    missing = because(ReasonCode.BACKEND_MISSING, backend="echo")
    liar = make_target("w1", "error", because(ReasonCode.CONTRADICTED, proof=missing))
    assert liar.message == "the node says that it is done, but the node does not have echo"
    ((_, sentence),) = advice(make_operation(liar))
    assert sentence.startswith("The node's own report counts")
    assert sentence.endswith("corral ops retry 0123abcd")


def test_what_nothing_can_prove_is_not_said_to_be_mended_by_a_retry(make_operation: Any, make_target: Any) -> None:
    target = make_target("w1", "blocked", because(ReasonCode.UNPROVABLE, backend="echo"))
    assert target.message.endswith("a date of echo: nothing can prove that it was replaced")
    ((_, sentence),) = advice(make_operation(target))
    assert "corral backends delete echo --node" in sentence


def test_a_name_is_quoted_in_commands_to_paste(make_operation: Any, make_target: Any) -> None:
    ((_, sentence),) = advice(make_operation(make_target("w1", "cancelled"), backend="a; rm {x}"))
    assert sentence.endswith("corral backends install 'a; rm {x}'")


def test_what_came_from_a_uri_is_started_anew_from_there(make_operation: Any, make_target: Any) -> None:
    ((_, sentence),) = advice(make_operation(make_target("w1", "cancelled"), uri="oci://host/echo:1"))
    assert sentence.endswith("corral backends install --uri oci://host/echo:1 --name echo")


def test_the_summary_names_who_failed_and_who_is_away(make_operation: Any, make_target: Any) -> None:
    targets = [
        make_target("w1", "success"),
        make_target("w2", "error", message="no", attempts=1),
        make_target("w3", "queued", waits_for_node=True),
        make_target("w4", "superseded"),
        make_target("w5", "blocked", message="no build fits"),
    ]
    failed = make_operation(*targets)
    assert summary(failed) == (
        "echo: installed on w1; failed on w2; blocked on w5; waiting for w3 to come back, which is no failure; "
        "no longer wanted on w4."
    )
    assert problems(failed) == ["w2: no (tried once)", "w5: no build fits"]
    assert what_next(failed) == "See what to do about it: corral ops show 0123abcd"
    assert accepted(failed) == "Operation 0123abcd: install echo on w1, w2, w3, w4, w5."


def test_a_summary_of_what_goes_on_says_how_to_watch_it(make_operation: Any, make_target: Any) -> None:
    busy = make_operation(make_target("w1", "downloading"), make_target("w2", "success"), make_target("w3", "success"))
    assert not is_over(busy)
    assert summary(busy) == "echo: installed on 2 nodes; under way on w1."
    assert what_next(busy).endswith("corral ops watch 0123abcd")
    assert what_next(make_operation(make_target("w1", "success"))) == ""


def test_of_many_failures_a_few_are_told_whole(make_operation: Any, make_target: Any) -> None:
    told = problems(make_operation(*(make_target(f"w{number}", "blocked", message="no") for number in range(9))))
    assert (len(told), told[0], told[-1]) == (6, "w0: no", "4 more nodes failed")


class TestTables:
    def test_a_list_counts_targets(self, make_operation: Any, make_target: Any) -> None:
        away = make_target("w2", "queued", waits_for_node=True)
        found = make_operation(make_target("w1", "success"), away, uri="oci://x/y")
        assert rendered(operation_table([found], NOW, width=200), 200) == [
            "ID        STATE    WHAT          STARTED  TARGETS                                BY     URI",
            "0123abcd  Waiting  install echo  5s ago   1 queued, 1 done (1 for absent nodes)  admin  oci://x/y",
        ]

    def test_one_operation_is_shown_whole_also_on_a_narrow_terminal(
        self, make_operation: Any, make_target: Any
    ) -> None:
        message = "a long complaint " * 10 + "end"
        found = make_operation(make_target("w1", "error", message=message, attempts=2))
        lines = rendered(operation_facts(found, NOW, width=70), 70)
        assert all(len(line) <= 70 for line in lines)
        assert "end" in " ".join(lines)
        assert "What to do" in lines

    def test_names_of_strangers_cannot_colour_the_terminal(self, make_operation: Any, make_target: Any) -> None:
        found = make_operation(make_target("[red]\x1b[31mx", "success"), backend="[b]\x1b")
        for content in (operation_facts(found, NOW, width=90), bars(found, FileSpeeds(), height=20)):
            told = "\n".join(rendered(content))
            assert "\x1b" not in told
            assert "[red]\ufffd[31mx" in told


class TestBars:
    def test_each_node_has_a_bar_with_its_speed(self, make_operation: Any, make_target: Any) -> None:
        moving = make_target(
            "w1",
            "downloading",
            phase="downloading",
            percentage=24.0,  # with the unpacking; bytes are those of the download
            current_bytes=8 * MIB,
            total_bytes=20 * MIB,
            bytes_per_second=2 * MIB,
            seconds_left=6.4,
        )
        done = make_target("w2", "success")
        found = make_operation(moving, done, bytes_per_second=2 * MIB, seconds_left=75.0)
        lines = rendered(bars(found, FileSpeeds(), height=24), 120)
        assert [line.split()[0] for line in lines] == ["w1", "w2", "all"]
        assert "40 %" in lines[0]
        assert lines[0].endswith("Downloading  8.0 MiB of 20.0 MiB  2.0 MiB/s, 6s left  downloading")
        assert lines[2] == "all together 12 %, 2.0 MiB/s, 1m 15s left: 1 downloading, 1 done"

    def test_where_there_is_little_room_the_bars_stay_whole(self, make_operation: Any, make_target: Any) -> None:
        name = "a/very/long/path/" * 10
        moving = make_target("worker-1", "downloading", file_name=name, current_bytes=3 * MIB, total_bytes=9 * MIB)
        failed = make_target("worker-2", "error", message=name)
        first, second, _ = rendered(bars(make_operation(moving, failed), FileSpeeds(), height=24), 80)
        done, none = "━" * 8 + " " * 16, " " * 24  # without colours
        assert first.startswith(f"worker-1  {done}  33 %  Downloading  3.0 MiB of 9.0 MiB  a/ve")
        assert second.startswith(f"worker-2  {none}  0 %   Failed       a/very")
        assert len(first) <= 80
        assert first.endswith("…")

    def test_of_a_thousand_nodes_those_are_shown_that_are_not_done(self, make_operation: Any, make_target: Any) -> None:
        done = [make_target(f"a{number}", "success") for number in range(998)]
        found = make_operation(*done, make_target("y", "queued"), make_target("z", "error"))
        assert [one.node_name for one in targets_to_show(found, 3)] == ["z", "y", "a0"]
        lines = rendered(bars(found, FileSpeeds(), height=10))
        assert len(lines) == 8
        assert lines[-1].startswith("993 more nodes; all together")

    def test_each_file_of_a_pull_has_a_bar_with_its_speed(self, make_operation: Any, make_target: Any) -> None:
        def pull(*files: FileShareView) -> OperationView:
            return make_operation(make_target("here:/models", "downloading", files=list(files)), verb="pull")

        def big(current: int) -> FileShareView:
            return FileShareView(name="model/big.gguf", state="fetching", current_bytes=current, total_bytes=20 * MIB)

        small = FileShareView(name="small.json", state="done", current_bytes=100, total_bytes=100)
        speeds = FileSpeeds()
        speeds.look(pull(big(0), small), 10.0)
        assert "/s" not in rendered(bars(pull(big(0), small), speeds, height=24), 120)[0]
        speeds.look(pull(big(4 * MIB), small), 12.0)
        lines = rendered(bars(pull(big(4 * MIB), small), speeds, height=24), 120)
        assert [line.split()[0] for line in lines] == ["big.gguf", "small.json", "all"]
        assert "20 %" in lines[0]
        assert lines[0].endswith("20 %   4.0 MiB of 20.0 MiB  2.0 MiB/s, 8s left")
        assert lines[1].endswith("100 %  Done  100 B of 100 B")
        narrow = rendered(bars(pull(big(4 * MIB), small), speeds, height=24), 80)
        assert narrow[0].endswith("4.0 MiB of 20.0 MiB  2.0 MiB/s, 8s left"), "the name gives way"

    def test_of_many_files_those_are_shown_that_are_not_done(self, make_operation: Any, make_target: Any) -> None:
        files = [FileShareView(name=f"f{number}", state="done") for number in range(50)]
        files.append(FileShareView(name="last" * 50, state="fetching", current_bytes=1))
        found = make_operation(make_target("here", "downloading", files=files), verb="pull")
        lines = rendered(bars(found, FileSpeeds(), height=10), 80)
        assert lines[0].startswith("lastlast")
        assert len(lines) == 8
        assert all(len(line) <= 80 for line in lines)
        assert lines[-1].startswith("44 more files; all together")


class TestPulls:
    def test_are_told_in_words_of_their_own(self, make_operation: Any, make_target: Any) -> None:
        target = make_target("here:/models", "downloading")
        running = make_operation(target, verb="pull", backend="small", uri="hf://o/r")
        assert accepted(running) == "Operation 0123abcd: pull small into here:/models."
        assert what_next(running).endswith("corral ops watch 0123abcd; stop it with: corral ops cancel 0123abcd")
        done = make_operation(make_target("here:/models", "success"), verb="pull", backend="small")
        assert summary(done) == "small: downloaded into here:/models."

    def test_advice_names_the_command_again(self, make_operation: Any, make_target: Any) -> None:
        cancelled = make_operation(make_target("here", "cancelled"), verb="pull", backend="my small", uri="hf://o/r")
        assert advice(cancelled) == [
            ("here", "If you still want it, start it again: corral models pull hf://o/r --name 'my small'")
        ]
        failed = make_operation(make_target("here", "error", attempts=1), verb="pull", backend="small")
        assert "not fetched again" in advice(failed)[0][1]
