"""The node's secret and its memory, on a real disk."""

import stat
from pathlib import Path

import pytest

from corral.base.errors import PathNotUsable
from corral.base.ids import NodeId
from corral.worker.membership.identity import MEMORY_FILE, SECRET_FILE, Memory, NodeIdentity, node_name


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "worker"


def test_the_secret_is_made_once_and_kept(directory: Path) -> None:
    first = NodeIdentity(directory).secret()

    assert NodeIdentity(directory).secret() == first
    assert len(first) >= 43


def test_two_nodes_have_two_secrets(tmp_path: Path) -> None:
    assert NodeIdentity(tmp_path / "a").secret() != NodeIdentity(tmp_path / "b").secret()


def test_only_the_owner_may_read_the_secret(directory: Path) -> None:
    NodeIdentity(directory).secret()

    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / SECRET_FILE).stat().st_mode) == 0o600


def test_a_secret_that_others_may_read_is_refused_with_the_remedy(directory: Path) -> None:
    NodeIdentity(directory).secret()
    (directory / SECRET_FILE).chmod(0o644)

    with pytest.raises(PathNotUsable, match="chmod 600"):
        NodeIdentity(directory).secret()


@pytest.mark.parametrize(
    "damage", [b"", b"\n", b"short", b"two words that are long enough to be one secret", b"\xff" * 40]
)
def test_a_damaged_secret_is_never_replaced_silently(directory: Path, damage: bytes) -> None:
    NodeIdentity(directory).secret()
    path = directory / SECRET_FILE
    path.write_bytes(damage)

    with pytest.raises(PathNotUsable, match="damaged"):
        NodeIdentity(directory).secret()
    assert path.read_bytes() == damage


def test_the_secret_is_in_no_message(directory: Path) -> None:
    secret = NodeIdentity(directory).secret()
    (directory / SECRET_FILE).write_text(secret[:-1] + "!")

    with pytest.raises(PathNotUsable) as refusal:
        NodeIdentity(directory).secret()
    assert secret[:20] not in str(refusal.value)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(PathNotUsable, match="file"):
        NodeIdentity(tmp_path / "file" / "worker").secret()


def test_the_last_node_id_is_remembered(directory: Path) -> None:
    directory.mkdir()
    assert NodeIdentity(directory).remembered() is None
    NodeIdentity(directory).remember(NodeId("b7a906b9"), "w1")

    assert NodeIdentity(directory).remembered() == Memory(id="b7a906b9", name="w1")


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\xfe", b'{"name":"w1"}', b'{"id":7}'])
def test_a_damaged_memory_is_forgotten(directory: Path, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    directory.mkdir()
    (directory / MEMORY_FILE).write_bytes(damage)
    (directory / MEMORY_FILE).chmod(0o600)

    assert NodeIdentity(directory).remembered() is None
    assert len(caplog.records) == 1


def test_a_memory_that_cannot_be_written_is_only_a_warning(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    NodeIdentity(directory).remember(NodeId("b7a906b9"), "w1")

    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize(
    ("configured", "hostname", "expected"),
    [
        ("w1", "box", "w1"),
        (" w1 ", "box", "w1"),
        ("", "box", "box"),
        ("", "", "node-4711"),
        ("n" * 300, "box", "n" * 255),
    ],
)
def test_a_node_always_has_a_name(configured: str, hostname: str, expected: str) -> None:
    assert node_name(configured, hostname=hostname, pid=4711) == expected
