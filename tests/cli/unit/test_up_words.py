"""What `corral up` says, and the command it offers."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from msgspec.structs import replace

from corral.cli.processes.commands import TerminalWords, client_command
from corral.processes.settings import UpSettings, gather
from corral.processes.settings_sources import resolve
from corral.processes.up import ReadyFleet
from corral.processes.up_file import UpKeys

READY = ReadyFleet(url="http://127.0.0.1:8080", healthy=2, seconds=2.345, model=None, logs=Path("/data/logs"))


def command_for(data: str | None, program: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", [program])
    sources = gather({"--data": data} if data else {}, {"HOME": "/home/someone"})
    return client_command(resolve(UpSettings, sources), sources, "nodes", "list")


def test_the_command_to_paste_works_from_the_same_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "corral"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command_for(None, str(program), monkeypatch) == "corral nodes list"
    assert command_for("/srv/fleet", str(program), monkeypatch) == "corral nodes list --data /srv/fleet"
    assert command_for("/srv/my fleet", str(program), monkeypatch) == "corral nodes list --data '/srv/my fleet'"
    monkeypatch.setenv("PATH", "/nowhere")
    assert command_for(None, ".venv/bin/corral", monkeypatch) == ".venv/bin/corral nodes list"


def test_started_as_a_module_the_command_is_the_program_beside_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`corral run --up` starts `corral up` as a module; what that offers is for the person who typed the former."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    program = tmp_path / "corral"
    monkeypatch.setenv("PATH", "/nowhere")
    assert command_for(None, "/x/corral/__main__.py", monkeypatch) == f"{tmp_path}/python -m corral nodes list"

    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert command_for(None, "/x/corral/__main__.py", monkeypatch) == f"{program} nodes list"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command_for(None, "/x/corral/__main__.py", monkeypatch) == "corral nodes list"


def test_words_on_a_terminal(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    width = shutil.get_terminal_size().columns
    words = TerminalWords(lambda *words: shlex.join(["corral", *words]))
    words.waiting(["worker-1, which does not answer yet", "worker-2, whose status is pending"])
    words.new_keys(UpKeys(admin="corral_a", registration="r"), Path("/data/credentials.json"))
    words.ready(READY)
    words.stopping()
    assert click.unstyle(capsys.readouterr().out) == (
        "Still waiting for worker-1, which does not answer yet; worker-2, whose status is pending"[: width - 1] + "\r"
        "Administrator key:   corral_a\n"
        "Registration token:  r\n"
        "They are kept in the data directory, readable only by you; this is the only time they are printed.\n"
        "Corral is ready at http://127.0.0.1:8080 with 2 healthy nodes, after 2.3 s. "
        "Open it in a browser; Ctrl-C stops it.\n"
        "Logs are in /data/logs; --verbose shows them here.\n"
        "Try: corral nodes list\n"
        "Stopping…\n"
    )


def test_keys_are_not_printed_where_the_output_is_no_terminal(capsys: Any) -> None:
    words = TerminalWords(lambda *words: shlex.join(["corral", *words]))
    words.new_keys(UpKeys(admin="corral_a", registration="r"), Path("/data/credentials.json"))
    assert capsys.readouterr().out == (
        "The administrator key and the registration token are in /data/credentials.json, readable only by you.\n"
    )


def test_a_fleet_with_a_model_offers_a_question(capsys: Any) -> None:
    words = TerminalWords(lambda *words: shlex.join(["corral", *words]))
    words.ready(replace(READY, healthy=1, model="smollm2"))
    assert capsys.readouterr().out.endswith(
        "\nsmollm2 is a toy. For a model to talk to: corral run hf://Qwen/Qwen2.5-1.5B-Instruct-GGUF\n"
        "Try: corral chat smollm2 --once 'What is the capital of France? Answer in one sentence.'\n"
    )


def test_other_flags_are_offered_in_the_way_the_fleet_was_started() -> None:
    def command(*words: str) -> str:
        return shlex.join(["corral", *words, "--data", "/srv/my fleet"])

    typed = TerminalWords(command).again("--port", "8090")
    made = TerminalWords(command, is_made=True).again("--port", "8090")

    assert typed == "corral up --port 8090 --data '/srv/my fleet'"
    program, target, arguments = shlex.split(made)
    assert (program, target) == ("make", "up")
    assert arguments == "ARGS=--port 8090 --data '/srv/my fleet'"
