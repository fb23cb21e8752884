"""The documentation is true: its commands are run, its links lead somewhere, its names exist.

Blocks marked `console` are transcripts: `$ ` begins a command, `> ` continues it, other lines are what one then sees.
Every command must succeed, and the words of every line that is shown must turn up together in one line of the real
output. Numbers, ids, times, sizes and addresses may differ; `…` stands for lines that were left out.
"""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest

from corral.bus.authority import write_for_own_server
from corral.bus.server import find_nats_server
from corral.cli.main import cli
from corral.processes.settings import ACCEPTED_WITHOUT_EFFECT, known_variables
from tests.kit.images import own_gallery
from tests.kit.model_hubs import ModelHubs
from tests.kit.plain_nats import PERMISSIONS
from tests.kit.ports import lasting_port
from tests.kit.waiting import wait_until

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLACES = ("src", "tests", "tools", "docs", "bench", "chaos", "requirements", ".ci")
ROOMS = tuple(path.name for path in (ROOT / "src" / "corral").iterdir() if (path / "__init__.py").exists())
WRITTEN_BASE_PORT, WRITTEN_HTTP_PORT = "24001", "24000"
"""Ports of the third worker in the guide; on the machine of a test somebody else may use them."""

LOOKING = re.compile(
    r"(\.venv/bin/)?corral (nodes (list|show)|backends list|ops (list|show)|models list|engines (list|show)|keys list|"
    r"events|doctor)\b"
)
"""Commands that may be repeated until they show what they should: the fleet needs a moment."""
LOOK_AGAIN_SECONDS = 2.0
"""The longest pause between two looks: each starts a program, which costs more than what it waits for."""
END = "=== end of command, exit code"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
VARIABLE = re.compile(r"\b(?:CORRAL|LOCALAI)_[A-Z0-9_]*[A-Z0-9]\b")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
OUR_COMMAND = re.compile(
    r"\bcorral (?:up|run|down|models|chat|frontend|worker|gallery|backends?|ops|nodes|engines|keys|events|doctor|"
    r"version)\b"
    r"[^\n|;&`]*"
)

CHANGING = frozenset({"now", "ago", "B", "KiB", "MiB", "GiB", "TiB"})
IDENTIFIER = re.compile(r"sha256:[0-9a-f]{12,64}|[0-9a-f]{8}(-[0-9a-f-]{27})?|[0-9a-f]{12}|corral_\S{20,}|\S+://\S+")


# Transcripts.


@dataclass(slots=True, kw_only=True)
class Step:
    """One command of a page, and what the page shows below it."""

    command: str
    shown: list[str] = field(default_factory=list)

    @property
    def only_looks(self) -> bool:
        return LOOKING.match(self.command) is not None

    def missing_from(self, output: str) -> list[str]:
        """The lines that were promised and did not come."""
        seen = [words(line) for line in output.splitlines()]
        return [line for line in self.shown if not any(words(line) <= real for real in seen)]


def words(line: str) -> frozenset[str]:
    """What stays the same from one machine to the next."""
    stripped = (word.strip("()[],;:.…\"'`→") for word in line.split())
    return frozenset(
        word for word in stripped if word[:1].isalpha() and word not in CHANGING and not IDENTIFIER.fullmatch(word)
    )


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [content for kind, content in BLOCK.findall(text) if kind == language]


def steps_of(page: Path) -> list[Step]:
    steps: list[Step] = []
    for line in "\n".join(blocks(page, "console")).splitlines():
        if line.startswith("$ "):
            steps.append(Step(command=line[2:]))
        elif line.startswith("> ") or line == ">":
            steps[-1].command += "\n" + line[2:]
        elif words(line):
            steps[-1].shown.append(line)
    assert steps, f"{page.name} has no commands"
    return steps


# A reader with a terminal.


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    output: str


class Shell:
    """One shell for a whole page: variables and background jobs last from command to command, as they do for people."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> Outcome:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{{ {command}\n}} < /dev/null\nprintf '\\n%s %s\\n' '{END}' $?\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.startswith(END):
                return Outcome(int(line.removeprefix(END)), "".join(lines))
            lines.append(line)
        raise AssertionError(f"the shell ended at: {command}\n{''.join(lines)}")

    def close(self) -> None:
        """End it with all that it left in the background."""
        os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:  # closes the pipes and waits
            pass


@pytest.fixture
def home(up: Any, tmp_path: Path) -> Path:
    """Where the fleet is found without being named, as after a plain `make up`."""
    return home_of(up, tmp_path)


def home_of(up: Any, folder: Path) -> Path:
    share = folder / ".local" / "share"
    share.mkdir(parents=True)
    (share / "corral").symlink_to(up.data)
    return folder


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    return environment_of(home)


def environment_of(home: Path) -> dict[str, str]:
    programs = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    return {"HOME": str(home), "PATH": programs, "LANG": "C.UTF-8"}


@pytest.fixture
def shell(home: Path, environment: dict[str, str]) -> Iterator[Shell]:
    opened = Shell(home, environment)
    yield opened
    opened.close()


@pytest.fixture
def shell_in_checkout(environment: dict[str, str]) -> Iterator[Shell]:
    opened = Shell(ROOT, environment)
    yield opened
    opened.close()


def follow(shell: Shell, steps: Iterable[Step]) -> None:
    for step in steps:
        outcome = shell.run(step.command)
        if step.only_looks and _problem(step, outcome):
            outcome = _look_again(shell, step)
        assert not _problem(step, outcome), f"$ {step.command}\n{outcome.output}\n{_problem(step, outcome)}"


def _look_again(shell: Shell, step: Step) -> Outcome:
    last = [Outcome(1, "")]

    def is_as_shown() -> bool:
        last[0] = shell.run(step.command)
        return not _problem(step, last[0])

    with suppress(AssertionError):  # the caller tells what was seen last
        wait_until(is_as_shown, step.command, seconds=90, longest_pause=LOOK_AGAIN_SECONDS)
    return last[0]


def _problem(step: Step, outcome: Outcome) -> str:
    if outcome.code != 0:
        return f"it ended with {outcome.code}"
    missing = step.missing_from(outcome.output)
    return "the page also shows: " + "; ".join(missing) if missing else ""


def test_the_first_look_of_the_readme_is_as_shown(shell_in_checkout: Shell, up: Any) -> None:
    up.until_healthy("worker-1", "worker-2")
    follow(shell_in_checkout, steps_of(ROOT / "README.md"))


def test_the_first_fleet_can_be_followed_word_by_word(shell: Shell) -> None:
    steps = steps_of(ROOT / "docs" / "guides" / "first-fleet.md")
    base_port = lasting_port()
    for step in steps:
        step.command = step.command.replace(WRITTEN_BASE_PORT, str(base_port)).replace(
            WRITTEN_HTTP_PORT, str(base_port - 1)
        )
    follow(shell, steps)
    assert shell.run("stat -c %a third.env").output.strip() == "600"


def test_lost_keys_are_replaced_as_described(shell: Shell) -> None:
    follow(shell, steps_of(ROOT / "docs" / "guides" / "lost-keys.md"))
    assert shell.run("corral nodes list").code == 0, "the new key is used from now on"


def test_people_are_let_in_and_kept_out_as_described(shell: Shell) -> None:
    follow(shell, steps_of(ROOT / "docs" / "guides" / "let-people-in.md"))
    record = shell.run("corral events").output
    assert "user.deleted" in record
    assert "alice (password)" in record


@pytest.mark.parametrize("page", ["concepts/galleries.md", "concepts/prompt-templates.md", "guides/sign-backends.md"])
def test_what_needs_no_fleet_can_be_followed_without_one(page: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path, environment_of(tmp_path))
    try:
        follow(shell, steps_of(ROOT / "docs" / page))
    finally:
        shell.close()


def test_speech_and_embeddings_are_as_described(shell: Shell) -> None:
    follow(shell, steps_of(ROOT / "docs" / "guides" / "speech-and-embeddings.md"))


@pytest.fixture
def hub_shell(tmp_path: Path, run_up: Any) -> Iterator[Shell]:
    """A shell beside a fleet whose hubs are those of the kit."""
    with (
        ModelHubs(tmp_path / "hubs") as hubs,
        run_up(tmp_path, **hubs.settings) as running,
    ):
        running.until_ready()
        running.until_healthy("worker-1", "worker-2")
        opened = Shell(tmp_path, environment_of(home_of(running, tmp_path)))
        yield opened
        opened.close()


def test_a_model_is_got_changed_and_removed_as_described(hub_shell: Shell) -> None:
    follow(hub_shell, steps_of(ROOT / "docs" / "guides" / "get-a-model.md"))


_CURL = f"""#!{sys.executable}
import sys, urllib.request
_, options, url, *words = sys.argv
assert options == "-sN" and words[0::2] == ["-H", "-d"], sys.argv
request = urllib.request.Request(url, words[3].encode(), dict([words[1].split(": ", 1)]))
with urllib.request.urlopen(request, timeout=60) as answer:
    sys.stdout.buffer.write(answer.read())
"""
"""Enough of curl for the guide, on machines that have none: a bare Debian, as `make test` has to pass there."""


def test_a_key_is_made_and_used_as_described(answering_up: Any, tmp_path: Path) -> None:
    answering_up.until_healthy("worker-1", "worker-2")
    environment = environment_of(home_of(answering_up, tmp_path))
    if shutil.which("curl") is None:
        (tmp_path / "curl").write_text(_CURL)
        (tmp_path / "curl").chmod(0o755)
        environment["PATH"] += f":{tmp_path}"
    shell = Shell(tmp_path, environment)
    page = steps_of(ROOT / "docs" / "guides" / "first-answer.md")
    steps = [step for step in page if step.command.startswith(("KEY=", "curl"))]
    assert len(steps) == 2
    try:
        for step in steps:
            step.command = step.command.replace("http://127.0.0.1:8080", answering_up.state()["url"]).replace(
                "smollm2", "chat"
            )
        follow(shell, steps)
    finally:
        shell.close()


def test_engines_of_others_answer_as_described(up: Any, tmp_path: Path) -> None:
    environment = environment_of(home_of(up, tmp_path))
    if shutil.which("curl") is None:
        (tmp_path / "curl").write_text(_CURL)
        (tmp_path / "curl").chmod(0o755)
        environment["PATH"] += f":{tmp_path}"
    shell = Shell(tmp_path, environment)
    ports = {"8001": str(lasting_port()), "8002": str(lasting_port())}
    try:
        steps = steps_of(ROOT / "docs" / "guides" / "external-engines.md")
        for step in steps:
            step.command = step.command.replace("http://127.0.0.1:8080", up.state()["url"])
            for written, free in ports.items():
                step.command = step.command.replace(written, free)
        follow(shell, steps)
    finally:
        shell.close()


def test_the_backup_of_the_guide_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    (command,) = [one for one in blocks(ROOT / "docs" / "guides" / "run-it-for-real.md", "sh") if ".backup(" in one]
    source, copy = tmp_path / "corral.db", tmp_path / "copy.db"
    with sqlite3.connect(source) as database:
        database.execute("CREATE TABLE kept (word TEXT)")
    typed = command.replace("/var/lib/corral/corral.db", str(source)).replace("/var/backups/corral.db", str(copy))

    subprocess.run(["/bin/sh", "-e", "-c", f"umask 022\n{typed}"], check=True)

    assert copy.stat().st_mode & 0o777 == 0o600
    assert sqlite3.connect(copy).execute("SELECT name FROM sqlite_master").fetchall() == [("kept",)]


# Backends that are installed for real.


@pytest.fixture
def installing_up(tmp_path: Path, run_up: Any) -> Iterator[Any]:
    """A fleet like that of `make up`, which names the images that it made. It has nothing installed yet."""
    with run_up(tmp_path, CORRAL_BUILTIN_GALLERY=str(own_gallery())) as running:
        running.until_ready()
        running.until_healthy("worker-1", "worker-2")
        yield running


@pytest.fixture
def installing_shell(installing_up: Any, tmp_path: Path) -> Iterator[Shell]:
    opened = Shell(tmp_path, environment_of(home_of(installing_up, tmp_path)))
    yield opened
    opened.close()


def test_backends_are_installed_and_deleted_as_described(installing_up: Any, installing_shell: Shell) -> None:
    steps = steps_of(ROOT / "docs" / "guides" / "operate-backends.md")
    (end,) = [place for place, step in enumerate(steps) if step.command.startswith("corral backends delete")]
    installed = Path(installing_up.data) / "workers"

    follow(installing_shell, steps[:end])
    assert len(list(installed.glob("*/backends/echo/run.sh"))) == 2
    (row,) = json.loads(installing_shell.run("corral backends list --refresh --json").output)["items"]
    assert (row["name"], [node["node_name"] for node in row["nodes"]]) == ("echo", ["worker-1", "worker-2"])
    operations = json.loads(installing_shell.run("corral ops list --json").output)["items"]
    assert [(one["verb"], one["counts"]) for one in operations] == [
        ("upgrade", {"success": 2}),
        ("install", {"success": 2}),
    ]

    follow(installing_shell, steps[end:])
    assert list(installed.glob("*/backends/echo")) == []


def test_a_fleet_is_declared_as_described(installing_up: Any, installing_shell: Shell) -> None:
    steps = steps_of(ROOT / "docs" / "guides" / "declare-the-fleet.md")
    (late,) = [place for place, step in enumerate(steps) if step.command.startswith("corral nodes label worker-2")]
    installed = Path(installing_up.data) / "workers"

    def are_installed() -> bool:
        (rule,) = json.loads(installing_shell.run("corral backends rules list --json").output)["items"]
        return bool(rule["counts"] == {"success": 2})

    follow(installing_shell, steps[: late + 1])
    wait_until(are_installed, "the rule reaches the second node", seconds=120, longest_pause=LOOK_AGAIN_SECONDS)
    follow(installing_shell, steps[late + 1 :])
    assert list(installed.glob("*/backends/echo")) == []


# NATS of one's own.


def test_the_nats_configurations_of_the_guide_are_sound_and_grant_what_ours_does(tmp_path: Path) -> None:
    server, users = blocks(ROOT / "docs" / "guides" / "several-frontends.md", "nats")
    (tmp_path / "nats.conf").write_text(server)
    logins, _ = write_for_own_server(tmp_path)
    assert logins.name == "logins.conf"

    def is_sound() -> subprocess.CompletedProcess[str]:
        command = [find_nats_server(), "-c", tmp_path / "nats.conf", "-t"]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    tried = is_sound()
    assert tried.returncode == 0, tried.stderr
    logins.write_text(users)
    tried = is_sound()
    assert tried.returncode == 0, tried.stderr
    assert granted(users) == {user: dict(rights) for user, rights in PERMISSIONS.items()}


def granted(users: str) -> dict[str, dict[str, list[str]]]:
    """By user and verb, as the file writes it."""
    lists = re.compile(r"(\w+): \[(.*?)\]", re.DOTALL)
    return {
        part.partition("\n")[0].strip('"'): {
            verb: re.findall(r'"([^"]+)"', subjects) for verb, subjects in lists.findall(part)
        }
        for part in users.split("user: ")[1:]
    }


# Links, files and names.


def test_every_link_leads_somewhere() -> None:
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in LINK.findall(prose(page))
        if "://" not in target and not leads_somewhere(page, target)
    ]
    assert dead == []


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "adr"
    linked = set(LINK.findall((folder / "README.md").read_text(encoding="utf-8")))
    assert {page.name for page in folder.glob("0*.md")} - linked == set()


def leads_somewhere(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    place = (page.parent / path).resolve() if path else page
    return place.exists() and place.is_relative_to(ROOT) and (not anchor or anchor in anchors(place))


def anchors(page: Path) -> set[str]:
    """How GitHub names headings."""
    headings = HEADING.findall(BLOCK.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_file_that_is_mentioned_exists() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        for name in CODE.findall(prose(page))
        if is_path(name) and not exists(name)
    ]
    assert missing == []


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def is_path(name: str) -> bool:
    """A path in this repository, or in `src/corral` with its room first. Angle brackets stand for a name to choose."""
    if not re.fullmatch(r"[\w./*-]+", name) or "/" not in name:
        return False
    return name.partition("/")[0] in (*PLACES, *ROOMS)


def exists(name: str) -> bool:
    return any(next(iter(root.glob(name.rstrip("/"))), None) for root in (ROOT, ROOT / "src" / "corral"))


def test_every_variable_that_is_mentioned_means_something() -> None:
    """To a setting of ours, or to the start of a backend."""
    scripts = [script.read_text(encoding="utf-8") for script in (ROOT / "backends").glob("*/*.sh")]
    known = known_variables() | set(ACCEPTED_WITHOUT_EFFECT) | set(VARIABLE.findall("\n".join(scripts)))
    unknown = {
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        for name in VARIABLE.findall(page.read_text(encoding="utf-8"))
        if name not in known
    }
    assert unknown == set()


def test_every_flag_that_is_mentioned_exists() -> None:
    known = set(flags_of(cli, click.Context(cli)))
    unknown = {
        f"{page.relative_to(ROOT)}: {flag}"
        for page in PAGES
        for command in OUR_COMMAND.findall(page.read_text(encoding="utf-8").replace("\\\n", ""))
        for flag in FLAG.findall(command)
        if flag not in known
    }
    assert unknown == set()


def flags_of(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if (found := command.get_command(context, name)) is not None:
                yield from flags_of(found, click.Context(found, parent=context))
