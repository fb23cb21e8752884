"""What a command says when it was not told what to do, or was told not to."""

import sys
from typing import Any

import click
import pytest

from corral.cli.fleet import events
from corral.cli.main import SECTIONS
from corral.processes.exit_codes import ExitCode
from corral.wire.models import ModelView
from corral.wire.plans import ActPlanView

MODEL = ModelView(name="small", backend="echo", model="", revision="", source="small.yaml", state="cold")


def test_the_list_of_commands_has_titles_and_each_command_once(corral: Any) -> None:
    sections = corral("--help").out.split("Options:")[1].split("\n\n")[1:]

    assert [section.splitlines()[0] for section in sections] == [f"{title}:" for title in SECTIONS]
    listed = [line.split()[0] for section in sections for line in section.splitlines()[1:]]
    assert listed == [name for section in SECTIONS.values() for name in section if name != "control"]


@pytest.mark.parametrize("words", [(), ("nodes",), ("backends", "rules")])
def test_a_group_alone_shows_its_help_and_no_error(corral: Any, words: tuple[str, ...]) -> None:
    outcome = corral(*words)
    assert (outcome.code, outcome.out) == (64, "")
    assert outcome.err.startswith(f"Usage: {' '.join(('corral', *words))} [OPTIONS]")
    assert "see:" not in outcome.err


def test_arguments_are_not_listed_among_the_options(corral: Any) -> None:
    assert "Options:\n  --once" in corral("chat", "--help").out


@pytest.mark.parametrize("words", [(), ("backends",), ("ops",), ("models",), ("backend",), ("nodes",)])
def test_summaries_of_commands_are_whole(corral: Any, words: tuple[str, ...]) -> None:
    assert "..." not in corral(*words, "--help").out.replace("[ARGS]...", "")


def test_who_says_no_changes_nothing(connected: Any, frontend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    frontend.tell("GET /api/v1/models/small", MODEL)
    frontend.tell("POST /api/v1/model-removals/plan", ActPlanView(hash="h", text="Remove: nothing."))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(click, "confirm", lambda *_, **__: False)
    outcome = connected("models", "remove", "small")
    assert (outcome.code, outcome.out, outcome.err) == (1, "", "Remove: nothing.\nNothing was changed.\n")
    assert {call.method for call in frontend.calls} == {"GET", "POST"}


def test_an_interrupt_is_no_error(connected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(events, "open_client", interrupted)
    outcome = connected("events", "--follow")
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "\n")


def test_labels_are_read_before_anybody_is_asked(connected: Any, frontend: Any) -> None:
    outcome = connected("nodes", "list", "--label", "zone")
    assert (outcome.code, frontend.calls) == (64, [])
    assert outcome.err == "error: --label: 'zone' is no label; write KEY=VALUE\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("node", "list"),
            "corral has no command 'node'; did you mean corral nodes? see: corral --help",
        ),
        (("hlep",), "corral has no command 'hlep'; did you mean corral help? see: corral --help"),
        (("help", "nodse"), "corral has no command 'nodse'; did you mean corral nodes? see: corral --help"),
        (
            ("help", "nodes", "lst"),
            "corral nodes has no command 'lst'; did you mean corral nodes list? see: corral nodes --help",
        ),
        (
            ("nodes", "lst"),
            "corral nodes has no command 'lst'; did you mean corral nodes list? see: corral nodes --help",
        ),
        (("xyzzy",), "corral has no command 'xyzzy'; see: corral --help"),
        (("contrl",), "corral has no command 'contrl'; see: corral --help"),
    ],
)
def test_an_unknown_command_is_answered_with_the_near_ones(corral: Any, words: tuple[str, ...], sentence: str) -> None:
    outcome = corral(*words)
    assert outcome.err == f"error: {sentence}\n"
    assert outcome.code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("pull", "smollm2"), "corral models pull"),
        (("search", "qwen"), "corral models search or corral gallery search"),
        (("approve", "worker-3"), "corral nodes approve"),
        (("list",), "corral models list or corral gallery list or corral backends list"),
        (("rm", "small"), "corral models remove or corral backends delete or corral nodes remove"),
        (("install", "echo"), "corral backends install"),
        (("stop",), "corral down"),
        (("serve",), "corral up"),
        (("start",), "corral up"),
        (("top",), "corral ps"),
        (("join", "http://10.0.0.1:8080"), "corral worker"),
        (("operations",), "corral ops"),
        (("nodes", "ls"), "corral nodes list"),
        (("nodes", "add"), "corral nodes invite"),
        (("models", "rm", "small"), "corral models remove"),
        (("models", "install", "small"), "corral models pull or corral models add"),
        (("backends", "remove", "echo"), "corral backends delete"),
    ],
)
def test_words_of_other_programs_lead_to_the_command(corral: Any, words: tuple[str, ...], meant: str) -> None:
    assert f"did you mean {meant}? see:" in corral(*words).err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("--url", "http://10.0.0.1:8080", "status"),
            "--url: corral has no such flag; flags of a command stand behind it, as in: corral COMMAND --url; "
            "see: corral --help",
        ),
        (
            ("backends", "install", "echo", "--all"),
            "--all: corral backends install has no such flag; see: corral backends install --help",
        ),
        (("up", "--prot", "9000"), "--prot: corral up has no such flag; did you mean --port?"),
    ],
)
def test_an_unknown_flag_is_answered_with_what_helps(corral: Any, words: tuple[str, ...], sentence: str) -> None:
    outcome = corral(*words)
    assert (outcome.code, outcome.err) == (ExitCode.USAGE, f"error: {sentence}\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("what-if", "node", "w1"), "Missing argument '{down|drained}'. Choose from: down, drained"),
        (("users", "create", "bob"), "Missing option '--role'. Choose from: admin, operator, viewer, inference"),
    ],
)
def test_what_can_be_chosen_stands_in_the_same_line(corral: Any, words: tuple[str, ...], sentence: str) -> None:
    assert corral(*words).err == f"error: {sentence}; see: corral {' '.join(words[:2])} --help\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("models", "scale", "m", "x"), "Invalid value for '[REPLICAS]': 'x' is not a whole number"),
        (("models", "scale", "m", "1.5"), "Invalid value for '[REPLICAS]': '1.5' is not a whole number"),
        (("chat", "m", "--temperature", "hot"), "Invalid value for '--temperature': 'hot' is not a number"),
    ],
)
def test_a_number_that_is_none_is_told_in_plain_words(corral: Any, words: tuple[str, ...], sentence: str) -> None:
    assert corral(*words).err.startswith(f"error: {sentence}; see: corral")


@pytest.mark.parametrize("words", [(), ("nodes",), ("nodes", "list"), ("help",)])
def test_help_is_a_command_as_well_as_a_flag(corral: Any, words: tuple[str, ...]) -> None:
    asked, flagged = corral("help", *words), corral(*words, "--help")
    assert asked.out.startswith(" ".join(("Usage: corral", *words)))
    assert (asked.code, asked.out, asked.err) == (ExitCode.OK, flagged.out, "")
