"""One table has the words that people read for states."""

import importlib.util
from enum import StrEnum
from pathlib import Path
from types import ModuleType

import pytest

from corral.frontend.backends.decide.backend import Rung
from corral.frontend.backends.decide.drift import DriftKind
from corral.frontend.engines.decide import EngineState
from corral.frontend.models.decide.pulling import BY_DIGEST, BY_SIZE
from corral.frontend.nodes.decide.invitations import InvitationState
from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.operations.decide.intent import TOLD, Verb
from corral.frontend.operations.decide.operation import OperationState, TargetStatus
from corral.frontend.serving.decide.load_job import LoadState, LoadStepName
from corral.frontend.serving.decide.placement import VerdictCode
from corral.frontend.serving.decide.replica import ReplicaState
from corral.frontend.serving.decide.what_if import Fate
from corral.frontend.serving.staging.decide.staged import ON_NODE, ON_NODE_BEFORE
from corral.hubs.downloads.orders import FileState
from corral.wire.keys import Scope
from corral.wire.state_words import GLYPHS, MOVING, PROOFS, WORDS, Subject, Tone, state_word, target_word

TOOL = Path(__file__).parents[3] / "tools" / "make_ui_words.py"


@pytest.mark.parametrize(
    ("subject", "states"),
    [
        (Subject.OPERATION, OperationState),
        (Subject.NODE, NodeStatus),
        (Subject.REPLICA, ReplicaState),
        (Subject.LOAD, LoadState),
        (Subject.LOAD_STEP, LoadStepName),
        (Subject.FILE, FileState),
        (Subject.INVITATION, InvitationState),
        (Subject.FATE, Fate),
        (Subject.DRIFT, DriftKind),
        (Subject.VERDICT, VerdictCode),
        (Subject.ROLE, Scope),
    ],
)
def test_every_state_has_a_word_and_every_word_a_state(subject: Subject, states: type[StrEnum]) -> None:
    assert set(WORDS[subject]) == {state.value for state in states}


def test_targets_have_two_words_more_for_what_is_being_deleted() -> None:
    assert set(WORDS[Subject.TARGET]) == {status.value for status in TargetStatus} | set(MOVING.values())
    assert set(MOVING) <= {verb.value for verb in Verb}
    assert target_word("downloading", "delete").label == "Deleting"
    assert target_word("downloading", "install").label == "Downloading"
    assert target_word("success", "delete").label == "Done"


def test_an_engine_may_also_be_disabled() -> None:
    assert set(WORDS[Subject.ENGINE]) == {state.value for state in EngineState} | {"disabled"}


def test_targets_have_the_labels_and_colours_that_were_promised() -> None:
    assert {state: (word.label, word.tone) for state, word in WORDS[Subject.TARGET].items()} == {
        "queued": ("Queued", Tone.GREY),
        "downloading": ("Downloading", Tone.BLUE),
        "deleting": ("Deleting", Tone.BLUE),
        "removing": ("Removing", Tone.BLUE),
        "running_on_worker": ("Worker busy", Tone.YELLOW),
        "success": ("Done", Tone.GREEN),
        "error": ("Failed", Tone.RED),
        "blocked": ("Blocked", Tone.PURPLE),
        "superseded": ("Superseded", Tone.MUTED),
        "cancelled": ("Cancelled", Tone.MUTED),
    }


def test_every_word_explains_itself_and_no_colour_stands_alone() -> None:
    assert set(GLYPHS) == set(Tone)
    assert len(set(GLYPHS.values())) == len(GLYPHS)
    for words in WORDS.values():
        for state, word in words.items():
            assert word.label, state
            assert word.label[0].isupper(), state
            assert word.tooltip.endswith("."), state
            assert word.glyph, state


def test_a_state_of_a_newer_frontend_is_shown_as_it_is() -> None:
    assert state_word(Subject.NODE, "hibernating").label == "hibernating"


@pytest.fixture
def make_ui_words() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_ui_words", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_same_words(make_ui_words: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_ui_words.main(["--check"]) == 0, capsys.readouterr().out


def test_a_page_with_old_words_is_noticed(
    make_ui_words: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(make_ui_words, "ROOT", tmp_path)
    monkeypatch.setattr(make_ui_words, "FILE", tmp_path / "ui" / "words.gen.ts")
    assert make_ui_words.main(["--check"]) == 1
    assert "does not fit" in capsys.readouterr().out
    assert make_ui_words.main([]) == 0
    assert make_ui_words.main(["--check"]) == 0


def test_every_proof_has_words() -> None:
    assert set(PROOFS) == {*Rung, TOLD, BY_DIGEST, BY_SIZE, ON_NODE, ON_NODE_BEFORE}
