"""Policies: what can be stated, what is wrong with those that cannot be used, and whom they accept."""

import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.base.errors import InvalidInput
from corral.imaging.private_keys import new_signing_key
from corral.oci.signatures.keyed import read_public_keys
from corral.oci.signatures.policy import Verification, expected_signer, read_policy, signer_problem, time_problem

KEYLESS = {"issuer": "https://issuer.example", "identity": "me@example.org"}
PEM = new_signing_key().public_key.pem
OTHER_PEM = new_signing_key().public_key.pem
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def test_a_policy_is_what_it_states() -> None:
    assert read_policy({}) is None
    assert read_policy({"issuer": "", "not_before": " "}) is None
    assert read_policy({**KEYLESS, "not_before": "2026-03-01T13:00:00+01:00"}) == Verification(
        issuer="https://issuer.example", identity="me@example.org", not_before=NOON
    )
    assert read_policy({"public_key": f"\n{PEM}\n"}) == Verification(public_key=PEM.strip())


def test_a_policy_survives_the_way_to_the_puller() -> None:
    policy = read_policy({**KEYLESS, "identity_regex": "^me@", "not_before": "2026-03-01T12:00:00Z"})

    assert msgspec.json.decode(msgspec.json.encode(policy), type=Verification) == policy


MALFORMED = {
    "no issuer": ({"identity": "x"}, "verification.issuer: is missing"),
    "no identity": ({"issuer": "x"}, "verification.identity: is missing"),
    "only a time": ({"not_before": "2026-01-01T00:00:00Z"}, "verification.issuer: is missing"),
    "unknown field": ({**KEYLESS, "subject": "x"}, "verification.subject: is unknown; known are issuer, issuer_regex"),
    "issuer_regex": (
        {**KEYLESS, "issuer_regex": "("},
        "verification.issuer_regex: is not a regular expression: .*'\\('",
    ),
    "identity_regex": ({**KEYLESS, "identity_regex": "a**"}, "verification.identity_regex: is not a regular"),
    "a day": (
        {**KEYLESS, "not_before": "2026-01-01"},
        "verification.not_before: must be a time such as .*'2026-01-01'",
    ),
    "no zone": ({**KEYLESS, "not_before": "2026-01-01T00:00:00"}, "verification.not_before: must be a time"),
    "no time": ({**KEYLESS, "not_before": "yesterday"}, "verification.not_before: must be a time .*'yesterday'"),
    "too long": ({**KEYLESS, "issuer": "x" * 5000}, "verification.issuer: has more than 4096"),
    "not text": ({**KEYLESS, "issuer": 7}, "verification.issuer: must be text, got int"),
    "key and issuer": ({"public_key": PEM, "issuer": "x"}, "verification.public_key: cannot stand beside issuer"),
    "key and time": ({"public_key": PEM, "not_before": "2026-01-01T00:00:00Z"}, "verification.not_before: needs"),
    "no key": ({"public_key": "not a key!"}, "verification.public_key: must be a PEM block"),
    "a private key": ({"public_key": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"}, "must be a PEM"),
    "blanks": (
        {"public_key": f"-----BEGIN PUBLIC KEY-----{' ' * 50_000}"},
        "verification.public_key: must be a PEM block",
    ),
    "half a key": ({"public_key": PEM[:60]}, "verification.public_key: must be a PEM block"),
    "a key and a half": ({"public_key": PEM + PEM[:60]}, "verification.public_key: must be a PEM block"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_wrong_with_a_policy_is_told_with_its_field(name: str) -> None:
    stated, sentence = MALFORMED[name]

    with pytest.raises(InvalidInput, match=sentence):
        read_policy(stated)  # type: ignore[arg-type]


def test_keys_are_pem_blocks_or_one_line() -> None:
    line = "".join(PEM.splitlines()[1:-1])

    assert [key.pem for key in read_public_keys(PEM + OTHER_PEM)] == [PEM, OTHER_PEM]
    assert read_public_keys(line) == read_public_keys(PEM)
    with pytest.raises(InvalidInput, match=r"verification\.public_key: holds something that is no public key"):
        read_public_keys("AAAA")


SIGNERS = {
    "as stated": (KEYLESS, True),
    "by expressions": ({"issuer_regex": "^https://issuer", "identity_regex": "@example.org$"}, True),
    "found within, as in Go": ({"issuer_regex": "issuer", "identity_regex": "example"}, True),
    "value and expression": ({**KEYLESS, "identity_regex": "^you@"}, False),
    "another issuer": ({**KEYLESS, "issuer": "https://other.example"}, False),
    "another issuer by expression": ({**KEYLESS, "issuer_regex": "^http://"}, False),
    "another identity": ({**KEYLESS, "identity": "you@example.org"}, False),
    "only a part of the identity": ({**KEYLESS, "identity": "me@example"}, False),
    "another letter case": ({**KEYLESS, "identity": "Me@example.org"}, False),
}


@pytest.mark.parametrize("name", SIGNERS)
def test_whom_a_policy_accepts(name: str) -> None:
    stated, is_accepted = SIGNERS[name]
    policy = read_policy(stated)
    assert policy is not None

    problem = signer_problem(policy, issuer="https://issuer.example", identities=["me@example.org"])

    assert (not problem) is is_accepted


@pytest.mark.parametrize("identity", ["", "me@example.org\n", "x" * 5000 + "me@example.org"])
def test_odd_names_are_nobody(identity: str) -> None:
    policy = Verification(issuer="i", identity_regex="me@example.org$")

    assert signer_problem(policy, issuer="i", identities=[identity] if identity else [])
    assert signer_problem(policy, issuer="", identities=["me@example.org"])


@pytest.mark.parametrize("page", ["concepts/signatures.md", "guides/sign-backends.md"])
def test_the_policies_of_the_documentation_can_be_used(page: str) -> None:
    text = (Path(__file__).parents[4] / "docs" / page).read_text()
    blocks = [tomllib.loads(block) for block in re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
    found = [gallery for block in blocks for gallery in as_list(block["gallery"]["backend_galleries"])]

    assert found
    for gallery in found:
        policy = read_policy(gallery["verification"])
        assert policy is not None
        assert policy.is_keyless or read_public_keys(policy.public_key)


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def test_the_earliest_proven_time_counts() -> None:
    policy = Verification(issuer="i", identity="x", not_before=NOON)

    assert time_problem(policy, [NOON]) == ""
    assert time_problem(policy, [NOON, datetime(2026, 2, 1, tzinfo=UTC)]) == "it was made at 2026-02-01T00:00:00+00:00"
    assert time_problem(policy, []) == "its time is not proven"
    assert time_problem(Verification(issuer="i", identity="x"), []) == ""


def test_what_is_expected_can_be_read() -> None:
    policy = Verification(issuer="https://i", identity_regex="^me", not_before=NOON)

    assert expected_signer(policy) == (
        "a signature by the identity that matches ^me of the issuer https://i, not before 2026-03-01T12:00:00+00:00"
    )
