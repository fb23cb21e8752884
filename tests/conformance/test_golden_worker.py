"""Every question that LocalAI's worker was recorded to answer about backends and models, put to ours."""

from collections import Counter
from pathlib import Path

from tests.kit.recorded_worker import SUBJECTS, RecordedRequest, differences, questions

VECTORS = Path(__file__).parent / "vectors" / "worker.json"
FILES = ("install", "upgrade", "stop", "delete", "list", "models", "bad_input")

DELIBERATE = {
    "cold load right after a model shutdown": "LocalAI refuses while the process is stopping; ours waits, then starts",
    "old alias after the forced reinstall: still resolves until the worker restarts (name table keeps it)": (
        "LocalAI keeps names that are gone until it restarts; ours says what is on the disk"
    ),
    "install: external, no backend": "LocalAI installs and then finds nothing; ours takes the name that it was given",
    "stop: advertised address (what a LocalAI frontend sends)": (
        "LocalAI compares an advertised host with loopback and never stops; ours compares ports"
    ),
}
"""Every recorded answer that differs from ours on purpose, and why. There are no others."""

RECORDED = Counter(
    {
        "backend.install": 62,
        "backend.upgrade": 14,
        "backend.delete": 14,
        "backend.list": 12,
        "models.running": 24,
        "model.unload": 10,
        "model.stop": 11,
        "model.delete": 12,
        "backend.nothing": 1,
    }
)
"""How many there are in the recordings: a change of this number is a change of what was compared."""


async def played(asked: list[RecordedRequest], folder: Path) -> dict[str, list[str]]:
    """The notes of those that differ, and how."""
    found = {}
    for number, question in enumerate(asked):
        if different := await differences(question, folder / str(number)):
            found[question.note or str(question)] = different
    return found


async def test_every_recorded_question_is_answered_alike(golden: Path, tmp_path: Path) -> None:
    asked = [question for file in FILES for question in questions(golden / f"nats_{file}.json")]
    assert Counter(question.subject for question in asked) == RECORDED

    different = await played(asked, tmp_path)

    assert {note: how for note, how in different.items() if note not in DELIBERATE} == {}
    assert set(different) == set(DELIBERATE)


async def test_every_question_of_our_own_is_answered_alike(tmp_path: Path) -> None:
    asked = questions(VECTORS)
    assert {question.subject for question in asked} >= SUBJECTS
    assert await played(asked, tmp_path) == {}
