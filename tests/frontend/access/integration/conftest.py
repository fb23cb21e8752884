"""What all tests of access over the API share."""

import pytest
from nacl.pwhash import argon2id

from corral.frontend.access import passwords

NOBODYS = argon2id.str(b"nobody's", opslimit=argon2id.OPSLIMIT_MIN, memlimit=argon2id.MEMLIMIT_MIN).decode()


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of logins are about who may do what. That a hash is dear is shown by the unit tests of passwords."""
    monkeypatch.setattr(passwords, "_PASSES", argon2id.OPSLIMIT_MIN)
    monkeypatch.setattr(passwords, "_MEMORY", argon2id.MEMLIMIT_MIN)
    monkeypatch.setattr(passwords, "_nobodys_hash", lambda: NOBODYS)
