"""`corral backend keygen` and `sign`: files, passwords, and what is said when something is wrong."""

import stat
from pathlib import Path

import pytest

from corral.imaging.private_keys import is_locked, new_signing_key, read_signing_key

from .conftest import Corral

SECRET = "open sesame"


@pytest.fixture
def folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    monkeypatch.delenv("CORRAL_SIGNING_PASSWORD", raising=False)
    return home


def test_a_pair_of_keys(corral: Corral, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_SIGNING_PASSWORD", SECRET)

    outcome = corral("backend", "keygen", "--output", "release")

    key = read_signing_key((folder / "release.key").read_bytes(), SECRET.encode())
    assert outcome.code == 0
    assert key.public_key.fingerprint in outcome.out
    assert (folder / "release.pub").read_text() == key.public_key.pem
    assert stat.S_IMODE((folder / "release.key").stat().st_mode) == 0o600
    assert SECRET not in outcome.out + outcome.err


def test_keys_are_never_replaced(corral: Corral, folder: Path) -> None:
    (folder / "corral.pub").write_text("precious")

    outcome = corral("backend", "keygen", "--no-password")

    assert outcome.code != 0
    assert "corral.pub is there already" in outcome.err
    assert not (folder / "corral.key").exists()


def test_a_password_of_a_file(corral: Corral, folder: Path) -> None:
    (folder / "password").write_text(f"{SECRET}\nsecond line\n")

    assert corral("backend", "keygen", "--password-file", "password").code == 0

    document = (folder / "corral.key").read_bytes()
    assert is_locked(document)
    assert read_signing_key(document, SECRET.encode())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["keygen"], "there is nobody to ask for the password of the private key: set CORRAL_SIGNING_PASSWORD"),
        (["keygen", "--password-file", "none"], "--password-file: none cannot be read: No such file or directory"),
        (["sign", "quay.io/x/y", "--key", "none"], "--key: none cannot be read: No such file or directory"),
        (["sign", "quay.io/x/y", "--key", "junk"], "--key: the private key cannot be read: it is not a PEM file"),
        (["sign", "quay.io/x/y", "--key", "junk", "-a", "x"], "--annotation: must be NAME=VALUE, got 'x'"),
        (["sign", "not an image", "--key", "junk"], "'not an image' is not an image reference"),
        (["sign", "quay.io/x/y"], "--key"),
    ],
)
def test_what_is_wrong_is_told(words: list[str], sentence: str, corral: Corral, folder: Path) -> None:
    (folder / "junk").write_text("no key")

    outcome = corral("backend", *words)

    assert outcome.code != 0
    assert sentence in outcome.err
    assert "Traceback" not in outcome.err


def test_a_wrong_password(corral: Corral, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "corral.key").write_bytes(new_signing_key().sealed(SECRET.encode()))
    monkeypatch.setenv("CORRAL_SIGNING_PASSWORD", "wrong-word")

    outcome = corral("backend", "sign", "quay.io/x/y", "--key", "corral.key")

    assert outcome.code != 0
    assert "--key: the private key cannot be read: the password is wrong, or the file is damaged" in outcome.err
    assert "wrong-word" not in outcome.err


def test_there_is_no_option_for_a_password_itself(corral: Corral, folder: Path) -> None:
    outcome = corral("backend", "keygen", "--password", SECRET)

    assert outcome.code != 0
    assert not (folder / "corral.key").exists()
