"""The key of secrets: its text, its file, and several processes that want one at once."""

import stat
import threading
from pathlib import Path

import pytest

from corral.base.errors import InvalidInput, PathNotUsable
from corral.frontend.store.secrets import SecretsKey


def test_a_key_survives_as_text() -> None:
    key = SecretsKey.generate()

    assert SecretsKey.from_text(f"  {key.to_text()}\n") == key
    assert SecretsKey.from_text(key.to_text() + "=") == key
    assert len(key.to_text()) == 43


def test_two_keys_differ() -> None:
    assert SecretsKey.generate() != SecretsKey.generate()


@pytest.mark.parametrize("text", ["", "short", "x" * 44, "ä" * 43, "A" * 42 + "!", "QUJD" * 11])
def test_what_is_not_a_key_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        SecretsKey.from_text(text)

    assert "43 characters" in refused.value.message
    assert not text or text not in refused.value.message


def test_a_key_does_not_show_itself() -> None:
    key = SecretsKey.generate()

    assert key.to_text() not in repr(key)
    assert repr(key.raw) not in repr(key)


def test_the_file_is_private_and_read_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secrets.key"
    key = SecretsKey.load_or_create(path)

    assert SecretsKey.load_or_create(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["secrets.key"]


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secrets.key"
    SecretsKey.load_or_create(path)
    path.chmod(0o644)

    with pytest.raises(PathNotUsable, match="chmod 600"):
        SecretsKey.load_or_create(path)


def test_a_file_without_a_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "secrets.key"
    path.touch(0o600)

    with pytest.raises(PathNotUsable, match=str(path)):
        SecretsKey.load_or_create(path)


def test_all_who_create_it_at_once_get_the_same_key(tmp_path: Path) -> None:
    path = tmp_path / "secrets.key"
    together = threading.Barrier(8)
    keys: list[SecretsKey] = []

    def start() -> None:
        together.wait()
        keys.append(SecretsKey.load_or_create(path))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(keys) == 8
    assert len(set(keys)) == 1
    assert len(list(tmp_path.iterdir())) == 1
