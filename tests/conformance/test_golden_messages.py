"""Every message of LocalAI's protocol, in both directions: read into a struct, and written again the same.

Our own vectors cover every kind and run from a clone alone; the recordings are read where they are beside it.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.frontend.nodes.decide.node import NodeStatus
from corral.wire.backends import Phase, size_text
from corral.wire.broadcasts import NodeProgressStatus
from corral.worker.processes.backend_logs import OutputStream
from tests.kit import http_forms, wire_forms
from tests.kit.wire_forms import Differs, MessageTally, NoForm

VECTORS = Path(__file__).parent / "vectors" / "messages.json"
Hold = Callable[[dict[str, Any], MessageTally], str]

ELSEWHERE = {"grpc.json": "test_golden_grpc.py"}
"""Recordings that another test reads."""

HOLDERS: dict[str, Hold] = {
    "nats": wire_forms.hold_message,
    "http": http_forms.hold_exchange,
    "http_files": http_forms.hold_file_exchange,
    "http_logs": http_forms.hold_log_exchange,
    "http_inference": http_forms.hold_inference,
}
"""By the beginning of a recording's name; the longest that fits."""

COUNTS = {
    "http_admin.json": MessageTally(read=55, written=51, plain=16),
    "http_files.json": MessageTally(read=77, written=40, refused=8, plain=66),
    "http_heartbeat.json": MessageTally(read=25, written=17, refused=1, plain=3),
    "http_inference.json": MessageTally(read=12),
    "http_logs.json": MessageTally(read=2, written=2, plain=9),
    "http_register.json": MessageTally(read=47, written=29, refused=2, unread=1),
    "nats_bad_input.json": MessageTally(read=75, written=46, refused=16, unread=3, unanswered=3),
    "nats_delete.json": MessageTally(read=25, written=15, unread=1),
    "nats_files_s3.json": MessageTally(read=62, written=39, refused=7, unread=3),
    "nats_gallery_broadcasts.json": MessageTally(read=23, written=23),
    "nats_install.json": MessageTally(read=83, written=54, unread=2),
    "nats_list.json": MessageTally(read=8, written=8, unread=8),
    "nats_models.json": MessageTally(read=54, written=32, unread=10, notes=1),
    "nats_staging_progress.json": MessageTally(read=10, written=10),
    "nats_stop.json": MessageTally(read=44, written=27, refused=2, unread=16, unanswered=1),
    "nats_upgrade.json": MessageTally(read=21, written=15, unread=1),
}
"""Requests, answers and events of each recording. A message that falls out of the comparison changes a number."""


def messages_in(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["messages"]
    return found


def holder(name: str) -> Hold:
    return HOLDERS[max((start for start in HOLDERS if name.startswith(start)), key=len)]


def problems_of(name: str, messages: list[dict[str, Any]], tally: MessageTally) -> Iterator[str]:
    for number, message in enumerate(messages):
        if message.get("direction") == "note":
            tally.notes += 1
            continue
        try:
            holder(message.get("like", name))(message, tally)
        except (NoForm, Differs) as problem:
            yield f"{name}[{number}] {type(problem).__name__}: {problem} ({message.get('note', '')})"


def test_every_recorded_message_is_read_and_written_alike(golden: Path) -> None:
    found, problems = {}, []
    for path in sorted(golden.glob("*.json")):
        if path.name not in ELSEWHERE:
            found[path.name] = MessageTally()
            problems += problems_of(path.name, messages_in(path), found[path.name])

    assert problems == []
    assert found == COUNTS


def test_what_is_read_elsewhere_is_read_there(golden: Path) -> None:
    for recording, test in ELSEWHERE.items():
        assert (golden / recording).is_file()
        assert recording in (Path(__file__).parent / test).read_text(encoding="utf-8")


def test_our_own_vectors_are_read_and_written_alike() -> None:
    tally = MessageTally()
    assert list(problems_of("vectors", messages_in(VECTORS), tally)) == []
    assert tally == MessageTally(read=120, written=112, refused=20, unread=6, plain=10, unanswered=2)


def test_our_own_vectors_have_every_kind_of_message() -> None:
    messages = messages_in(VECTORS)
    patterns = {wire_forms.pattern_of(message["subject"])[0] for message in messages if "subject" in message}
    assert patterns == set(wire_forms.FORMS) | wire_forms.NOBODY_LISTENS
    paths = {(message["method"], message["path"]) for message in messages if message["like"] == "http"}
    for route in http_forms.ROUTES:
        assert any(method == route.method and re.fullmatch(route.path, path) for method, path in paths), route


def test_a_message_without_a_form_is_noticed() -> None:
    message = {"direction": "LocalAI frontend -> LocalAI worker", "subject": "nodes.n.backend.new", "bytes": "{}"}
    with pytest.raises(NoForm):
        wire_forms.hold_message(message, MessageTally())
    with pytest.raises(NoForm):
        http_forms.hold_exchange({"method": "GET", "path": "/new", "status": 200, "response": {}}, MessageTally())


@pytest.mark.parametrize(
    ("wanted", "got"), [({"a": 1}, {"a": 1.0}), ({"a": None}, {}), ({}, {"a": 0}), ({"a": [1]}, {"a": []})]
)
def test_what_differs_is_noticed(wanted: object, got: object) -> None:
    assert len(list(wire_forms.differing(wanted, got))) == 1
    assert list(wire_forms.differing({"a": 1}, {"a": 1, "corral": {}})) == []


# Words, held against what was recorded and what the protocol says, not against our own constants.


def test_the_words_for_a_node_s_progress() -> None:
    words = ["queued", "downloading", "running_on_worker", "success", "error"]
    assert [str(status) for status in NodeProgressStatus] == words


def test_the_words_for_phases() -> None:
    ours = "verifying"
    assert [str(phase) for phase in Phase if phase != ours] == ["resolving", "downloading", "extracting", "starting"]


def test_the_words_for_a_node_s_status() -> None:
    assert {str(status) for status in NodeStatus} == {"pending", "healthy", "unhealthy", "offline", "draining"}


def test_recorded_words_are_ours(golden: Path) -> None:
    def recorded(file: str, field: str) -> set[str]:
        return set(re.findall(rf'\\"{field}\\": ?\\"(\w+)\\"', (golden / file).read_text(encoding="utf-8")))

    ends = recorded("nats_gallery_broadcasts.json", "status")
    assert ends == {"downloading", "success", "error"}
    assert ends <= {str(status) for status in NodeProgressStatus}
    assert recorded("nats_install.json", "phase") == {"downloading"} <= {str(phase) for phase in Phase}
    nodes = {message["response"]["status"] for message in registrations(golden)}
    assert nodes == {"healthy", "pending"}
    assert nodes <= {str(status) for status in NodeStatus}
    lines = re.findall(r'"stream": "(\w+)"', (golden / "http_logs.json").read_text(encoding="utf-8"))
    assert set(lines) <= {str(stream) for stream in OutputStream} == {"stdout", "stderr"}


def registrations(golden: Path) -> list[dict[str, Any]]:
    return [message for message in messages_in(golden / "http_register.json") if "status" in message["response"]]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3686, "3.6 KiB"),
        (75916902, "72.4 MiB"),
        (83676364, "79.8 MiB"),
        (2**31 + 2**27, "2.1 GiB"),
        (2**63, "8.0 EiB"),
        (2**73, "8192.0 EiB"),
    ],
)
def test_sizes_are_worded_as_recorded(size: int, text: str) -> None:
    assert size_text(size) == text
