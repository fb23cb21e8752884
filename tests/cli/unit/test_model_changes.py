"""`corral models add`, `edit`, `history`, `rollback`, `copy`, `disable` and `export`."""

import io
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from corral.wire.model_changes import ModelChange, ModelHistory, ModelRevisionView
from corral.wire.models import ModelList, ModelView

OLD = "name: small\nbackend: echo\ncontext_size: 512\n"
NEW = OLD.replace("512", "1024")
PUT = "PUT /api/v1/models/small"


def revision(number: int, text: str, change: str = "edited", **changes: Any) -> ModelRevisionView:
    made = ModelRevisionView(
        number=number,
        revision=f"hash of {text}",
        text=text,
        change=change,
        changed_at="2026-03-01T12:00:00Z",
        changed_by="admin",
    )
    return msgspec.structs.replace(made, **changes)


def change(number: int = 3, **changes: Any) -> ModelChange:
    return msgspec.structs.replace(ModelChange(name="small", number=number, revision="r", change="edited"), **changes)


@pytest.fixture
def stored(frontend: Any) -> Any:
    """A frontend with a model that was changed once."""
    items = [revision(2, OLD), revision(1, OLD.replace("echo", "other"), "added")]
    frontend.tell("GET /api/v1/model-history/small", ModelHistory(name="small", items=items))
    frontend.tell(PUT, change(warnings=["line 3: odd"], reloads=["r1"]))
    return frontend


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """An editor that replaces the text by each of these in turn, and notes what it found."""

    def install(*texts: str) -> Path:
        seen, turns = tmp_path / "seen", tmp_path / "turns"
        turns.mkdir()
        for number, text in enumerate(texts):
            (turns / str(number)).write_text(text)
        script = tmp_path / "editor"
        script.write_text(
            f'#!/bin/sh\nn={turns}/$(ls {turns} | sort -n | head -1)\ncat "$1" >> {seen}\ncat "$n" > "$1"\nrm "$n"\n'
        )
        script.chmod(0o755)
        monkeypatch.setenv("VISUAL", str(script))
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        return seen

    return install


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """What the person says to each question; the questions are returned."""

    def prepare(*replies: bool) -> list[str]:
        questions: list[str] = []
        turns = list(replies)

        def confirm(question: str, **_: Any) -> bool:
            questions.append(question)
            return turns.pop(0)

        monkeypatch.setattr(click, "confirm", confirm)
        return questions

    return prepare


class TestAdd:
    def test_sends_the_text_as_it_is(self, connected: Any, frontend: Any, tmp_path: Path) -> None:
        (tmp_path / "m.yaml").write_text("# mine\n" + OLD)
        frontend.tell("POST /api/v1/models", change(1, warnings=["line 9: unknown key 'contxt_size'"]), 201)
        outcome = connected("models", "add", str(tmp_path / "m.yaml"))
        assert (outcome.code, outcome.out) == (0, "small: added.\n")
        assert outcome.err == "warning: line 9: unknown key 'contxt_size'\n"
        assert [call.body for call in frontend.calls] == [{"config": "# mine\n" + OLD, "dry_run": False}]

    def test_reads_a_pipe(self, connected: Any, frontend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(OLD.encode())))
        frontend.tell("POST /api/v1/models", change(1), 201)
        assert connected("models", "add", "-", "--dry-run").out == "small: can be added.\n"
        assert frontend.calls[0].body == {"config": OLD, "dry_run": True}

    @pytest.mark.parametrize(
        ("content", "words"),
        [(None, "cannot be read"), (b"\xff", "no UTF-8 text"), (b"x" * (4 * 1024**2 + 1), "larger")],
    )
    def test_what_cannot_be_read_is_not_sent(
        self, connected: Any, frontend: Any, tmp_path: Path, content: bytes | None, words: str
    ) -> None:
        if content is not None:
            (tmp_path / "m.yaml").write_bytes(content)
        outcome = connected("models", "add", str(tmp_path / "m.yaml"))
        assert (outcome.code, frontend.calls) == (64, [])
        assert words in outcome.err


class TestEdit:
    def test_shows_the_difference_asks_and_stores(self, connected: Any, stored: Any, editor: Any, answers: Any) -> None:
        seen, questions = editor(NEW), answers(True)
        outcome = connected("models", "edit", "small")
        assert outcome.code == 0, outcome.err
        assert seen.read_text() == OLD
        assert questions == ["Store this?"]
        assert outcome.out.splitlines() == [
            "--- small 2",
            "+++ small (new)",
            "@@ -1,3 +1,3 @@",
            " name: small",
            " backend: echo",
            "-context_size: 512",
            "+context_size: 1024",
            "1 replica serves what it was, and will be replaced.",
            "small: stored as change 3. To undo it: corral models rollback small 2",
        ]
        assert "warning: line 3: odd" in outcome.err
        bodies = [call.body for call in stored.calls if call.method == "PUT"]
        assert bodies == [
            {"config": NEW, "if_revision": f"hash of {OLD}", "dry_run": True},
            {"config": NEW, "if_revision": f"hash of {OLD}", "dry_run": False},
        ]

    def test_a_refused_text_is_edited_again_and_not_lost(
        self, connected: Any, stored: Any, editor: Any, answers: Any
    ) -> None:
        seen, questions = editor("broken", "broken too"), answers(True, False)
        stored.tell(PUT, {"error": {"message": "line 1: is no mapping"}}, 400)
        outcome = connected("models", "edit", "small")
        assert outcome.code == 1
        assert questions == ["Edit it again?", "Edit it again?"]
        assert seen.read_text() == OLD + "broken", "the second look is at the text of the first"
        assert outcome.err.count("line 1: is no mapping") == 2
        kept = Path(outcome.err.rpartition("--file ")[2].strip())
        assert kept.read_text() == "broken too"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        kept.unlink()

    def test_an_editor_that_is_not_there_is_named_and_nothing_is_asked(
        self, connected: Any, stored: Any, editor: Any, answers: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        editor()
        monkeypatch.setenv("VISUAL", "no-such-editor")
        questions = answers(False)
        outcome = connected("models", "edit", "small")
        assert (outcome.code, questions) == (73, [])
        sentence = "no-such-editor cannot be started: No such file or directory; name an editor in $EDITOR"
        assert f"error: {sentence}\n" in outcome.err
        kept = Path(outcome.err.partition("--file ")[2].splitlines()[0])
        assert kept.read_text() == OLD
        kept.unlink()

    def test_no_change_is_no_change(self, connected: Any, stored: Any, editor: Any) -> None:
        editor(OLD)
        assert connected("models", "edit", "small").out == "Nothing was changed.\n"
        assert [call.method for call in stored.calls] == ["GET"]

    def test_an_answer_of_no_keeps_the_text(self, connected: Any, stored: Any, editor: Any, answers: Any) -> None:
        editor(NEW)
        answers(False)
        outcome = connected("models", "edit", "small")
        assert outcome.code == 1
        kept = Path(outcome.err.rpartition("--file ")[2].strip())
        assert kept.read_text() == NEW
        kept.unlink()

    def test_a_change_by_somebody_else_is_told_and_the_text_kept(
        self, connected: Any, stored: Any, editor: Any, answers: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        editor(NEW)

        def meanwhile(*_: Any, **__: Any) -> bool:
            stored.tell(PUT, {"error": {"message": "is another one by now, edited by eve"}}, 409)
            return True

        monkeypatch.setattr(click, "confirm", meanwhile)
        outcome = connected("models", "edit", "small")
        assert outcome.code == 1
        assert "is another one by now, edited by eve" in outcome.err
        kept = Path(outcome.err.partition("Your text is in ")[2].partition(";")[0])
        assert kept.read_text() == NEW
        kept.unlink()

    def test_a_script_gives_a_file(self, connected: Any, stored: Any, tmp_path: Path) -> None:
        (tmp_path / "new.yaml").write_text(NEW)
        assert connected("models", "edit", "small").code == 64
        refused = connected("models", "edit", "small", "--file", str(tmp_path / "new.yaml"))
        assert (refused.code, "--yes" in refused.err) == (64, True)
        done = connected("models", "edit", "small", "--file", str(tmp_path / "new.yaml"), "--yes", "--json")
        assert (done.code, done.json()["number"]) == (0, 3)

    def test_a_removed_model_is_not_edited(self, connected: Any, frontend: Any) -> None:
        items = [revision(3, OLD, "removed"), revision(1, OLD)]
        frontend.tell("GET /api/v1/model-history/small", ModelHistory(name="small", items=items))
        outcome = connected("models", "edit", "small")
        assert outcome.code == 1
        assert "`corral models rollback small` brings it back" in outcome.err


class TestHistory:
    def test_each_change_is_shown_with_its_difference(self, connected: Any, stored: Any) -> None:
        outcome = connected("models", "history", "small")
        lines = outcome.out.splitlines()
        assert lines[0].startswith("2  edited by admin, 2026-03-01 12:00:00 (")
        assert lines[1:3] == ["--- small 1", "+++ small 2"]
        assert {"-backend: other", "+backend: echo"} <= set(lines)
        assert lines[-1].startswith("1  added by admin")
        assert [item["number"] for item in connected("models", "history", "small", "--json").json()["items"]] == [2, 1]

    def test_control_characters_in_a_text_do_not_reach_the_terminal(self, connected: Any, frontend: Any) -> None:
        items = [revision(2, "name: \x1b[31msmall"), revision(1, "name: small")]
        frontend.tell("GET /api/v1/model-history/small", ModelHistory(name="small", items=items))
        assert "\x1b" not in connected("models", "history", "small").out


class TestRollback:
    ROUTE = "POST /api/v1/model-rollbacks"

    @pytest.mark.parametrize(("arguments", "number"), [((), 1), (("2",), 2), (("1",), 1)])
    def test_goes_back_to_a_number_or_before_the_last_change(
        self, connected: Any, stored: Any, arguments: tuple[str, ...], number: int
    ) -> None:
        stored.tell(self.ROUTE, change(3))
        outcome = connected("models", "rollback", "small", *arguments, "--yes")
        assert outcome.out.splitlines()[-1] == f"small is as at {number} again; this is change 3."
        assert stored.calls[-1].body == {"name": "small", "number": number}

    def test_an_unknown_number_lists_those_that_are(self, connected: Any, stored: Any) -> None:
        outcome = connected("models", "rollback", "small", "7", "--yes")
        assert (outcome.code, outcome.err) == (1, "error: small has no change 7; there are 2, 1\n")

    def test_a_removed_model_comes_back_as_it_was(self, connected: Any, frontend: Any) -> None:
        items = [revision(3, OLD, "removed"), revision(2, OLD)]
        frontend.tell("GET /api/v1/model-history/small", ModelHistory(name="small", items=items))
        frontend.tell(self.ROUTE, change(4))
        assert connected("models", "rollback", "small", "--yes").code == 0
        assert frontend.calls[-1].body == {"name": "small", "number": 2}

    def test_what_never_was_anything_else_has_no_way_back(self, connected: Any, frontend: Any) -> None:
        frontend.tell("GET /api/v1/model-history/small", ModelHistory(name="small", items=[revision(1, OLD)]))
        outcome = connected("models", "rollback", "small", "--yes")
        assert (outcome.code, "never was anything else" in outcome.err) == (1, True)


def test_a_copy_has_another_name(connected: Any, frontend: Any) -> None:
    frontend.tell("POST /api/v1/model-copies", change(1, name="big"))
    assert connected("models", "copy", "small", "big").out == "big: added, as small is.\n"
    assert frontend.calls[0].body == {"name": "small", "to": "big"}


@pytest.mark.parametrize(
    ("command", "body"),
    [
        ("disable", {"is_disabled": True}),
        ("enable", {"is_disabled": False}),
        ("keep", {"is_pinned": True}),
        ("unkeep", {"is_pinned": False}),
    ],
)
def test_states_are_set_one_at_a_time(connected: Any, frontend: Any, command: str, body: dict[str, bool]) -> None:
    frontend.tell("POST /api/v1/model-states", change())
    assert connected("models", command, "small").code == 0
    assert frontend.calls[0].body == {"name": "small", **body}


class TestExport:
    @pytest.fixture
    def two(self, frontend: Any) -> Any:
        def model(name: str) -> ModelView:
            return ModelView(name=name, backend="echo", model="", revision="", source="", state="cold")

        frontend.tell("GET /api/v1/models", ModelList(items=[model("small"), model("org/../big")]))
        for name, path in (("small", "small"), ("org/../big", "org%2F..%2Fbig")):
            items = [revision(1, f"# as written\nname: {name}\n")]
            frontend.tell(f"GET /api/v1/model-history/{path}", ModelHistory(name=name, items=items))
        return frontend

    def test_prints_the_text_exactly(self, connected: Any, two: Any) -> None:
        assert connected("models", "export", "small").out == "# as written\nname: small\n"

    def test_writes_files_that_stay_in_the_directory(self, connected: Any, two: Any, tmp_path: Path) -> None:
        outcome = connected("models", "export", "--all", str(tmp_path / "out"))
        assert (outcome.code, outcome.out) == (0, f"Wrote 2 files into {tmp_path / 'out'}.\n")
        assert {file.name: file.read_text() for file in (tmp_path / "out").iterdir()} == {
            "small.yaml": "# as written\nname: small\n",
            "org%2F..%2Fbig.yaml": "# as written\nname: org/../big\n",
        }

    def test_never_overwrites_something_else(self, connected: Any, two: Any, tmp_path: Path) -> None:
        (tmp_path / "small.yaml").write_text("mine")
        refused = connected("models", "export", "small", str(tmp_path))
        assert (refused.code, (tmp_path / "small.yaml").read_text()) == (73, "mine")
        assert connected("models", "export", "small", str(tmp_path), "--force").code == 0
        assert connected("models", "export", "small", str(tmp_path)).code == 0, "the same text is no obstacle"

    @pytest.mark.parametrize("arguments", [(), ("small", "there", "--all")])
    def test_needs_a_name_or_all(self, connected: Any, arguments: tuple[str, ...]) -> None:
        assert connected("models", "export", *arguments).code == 64

    def test_json_has_texts_and_files(self, connected: Any, two: Any) -> None:
        assert json.loads(connected("models", "export", "small", "--json").out)["items"] == [
            {"name": "small", "text": "# as written\nname: small\n", "file": ""}
        ]
