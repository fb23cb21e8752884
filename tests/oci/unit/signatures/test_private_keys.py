"""Keys to sign with: what is written can be read again, and what is wrong is told without a word of the content."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa

from corral.base.errors import InvalidInput
from corral.imaging.private_keys import is_locked, new_signing_key, read_signing_key

KEY = new_signing_key()
SEALED = KEY.sealed(b"open sesame")


def test_a_sealed_key_opens_with_its_password_only() -> None:
    assert read_signing_key(SEALED, b"open sesame").public_key == KEY.public_key
    assert is_locked(SEALED)
    for wrong in (b"", b"open sesame "):
        with pytest.raises(
            InvalidInput, match="--key: the private key cannot be read: the password is wrong"
        ) as caught:
            read_signing_key(SEALED, wrong)
        assert "sesame" not in str(caught.value)


def test_a_key_has_nothing_to_show() -> None:
    assert "0x" in repr(KEY)
    assert KEY.sealed(b"open sesame") != SEALED


@pytest.mark.parametrize(
    ("encryption", "password"),
    [
        (serialization.NoEncryption(), b""),
        (serialization.BestAvailableEncryption(b"secret"), b"secret"),
    ],
    ids=["plain", "locked"],
)
@pytest.mark.parametrize(
    "new_key",
    [
        lambda: ec.generate_private_key(ec.SECP384R1()),
        ed25519.Ed25519PrivateKey.generate,
        lambda: rsa.generate_private_key(65537, 2048),
    ],
    ids=["P-384", "Ed25519", "RSA"],
)
def test_keys_of_others(new_key: Callable[[], Any], encryption: Any, password: bytes) -> None:
    document = new_key().private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)

    read = read_signing_key(document, password)

    assert read.public_key.verifies(read.sign(b"content"), b"content")


def changed(**changes: Any) -> bytes:
    head, *lines, tail = SEALED.decode().strip().splitlines()
    envelope = json.loads(base64.b64decode("".join(lines)))
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = envelope
        for parent in parents:
            place = place[parent]
        place[last] = value
    return "\n".join([head, base64.b64encode(json.dumps(envelope).encode()).decode(), tail]).encode()


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"no key",
        SEALED[:200],
        changed(kdf__name="argon2"),
        changed(cipher__name="aes"),
        changed(kdf__params__N=2**30),
        changed(kdf__params__r=4096),
        changed(cipher__nonce="AAAA"),
        changed(ciphertext="AAAA"),
        changed(kdf__salt=7),
        KEY.public_key.pem.encode(),
    ],
)
def test_what_is_no_key(document: bytes) -> None:
    with pytest.raises(InvalidInput, match="--key: the private key cannot be read"):
        read_signing_key(document, b"open sesame")


@pytest.mark.parametrize(
    ("new_key", "sentence"),
    [
        (lambda: dsa.generate_private_key(1024), "must be an ECDSA, Ed25519 or RSA key"),
        (lambda: rsa.generate_private_key(65537, 1024), "--key: is an RSA key of 1024 bits"),
    ],
    ids=["DSA", "small"],
)
def test_keys_that_nobody_would_accept(new_key: Callable[[], Any], sentence: str) -> None:
    document = new_key().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )

    with pytest.raises(InvalidInput, match=sentence):
        read_signing_key(document, b"")
