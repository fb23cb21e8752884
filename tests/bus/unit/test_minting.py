"""JWTs for LocalAI's nodes: its claims and lists, signed by the account."""

import base64
import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import nkeys
import pytest

from corral.base.errors import InvalidInput
from corral.base.ids import NodeId
from corral.bus.minting import Minter

NOW = datetime(2026, 11, 16, 10, 0, tzinfo=UTC)
SEED = nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_ACCOUNT).decode()
ACCOUNT = nkeys.from_seed(bytearray(SEED.encode()))


def opened(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def claims_of(jwt: str) -> dict[str, Any]:
    claims: dict[str, Any] = json.loads(opened(jwt.split(".")[1]))
    return claims


def test_the_claims_are_localai_s_but_for_what_frontends_are_answered() -> None:
    minted = Minter(SEED, timedelta(hours=24)).mint(NodeId("a.b c"), node_type="backend", at=NOW)
    header, body, signature = minted.jwt.split(".")
    assert json.loads(opened(header)) == {"typ": "JWT", "alg": "ed25519-nkey"}
    assert ACCOUNT.verify(f"{header}.{body}".encode(), opened(signature))
    claims = claims_of(minted.jwt)
    account = ACCOUNT.public_key.decode()
    assert claims["sub"] == nkeys.from_seed(bytearray(minted.seed.encode())).public_key.decode()
    assert (claims["iss"], claims["iat"], claims["exp"]) == (account, int(NOW.timestamp()), claims["iat"] + 86400)
    assert claims["name"] == "localai-backend-a-b-c"
    assert claims["nats"] == {
        "pub": {"allow": ["nodes.a-b-c.backend.install.*.progress", "nodes.a-b-c.files.>", "_INBOX.>"]},
        "sub": {"allow": ["nodes.a-b-c.>", "_INBOX.>"], "deny": ["_INBOX.frontend.>"]},
        "subs": -1,
        "data": -1,
        "payload": -1,
        "issuer_account": account,
        "type": "user",
        "version": 2,
    }


def test_a_jwt_s_id_is_the_digest_of_the_rest() -> None:
    claims = claims_of(Minter(SEED, timedelta(hours=1)).mint(NodeId("n"), node_type="backend", at=NOW).jwt)
    id = claims.pop("jti")
    digest = hashlib.new("sha512_256", json.dumps(claims, separators=(",", ":")).encode()).digest()
    assert id == base64.b32encode(digest).decode().rstrip("=")


def test_an_agent_hears_what_agents_need() -> None:
    nats = claims_of(Minter(SEED, timedelta(hours=1)).mint(NodeId("n"), node_type="agent", at=NOW).jwt)["nats"]
    assert nats["pub"]["allow"] == ["agent.>", "jobs.>", "_INBOX.>"]
    assert {"nodes.n.backend.stop", "agent.execute", "mcp.discovery", "_INBOX.>"} <= set(nats["sub"]["allow"])
    assert "nodes.n.>" not in nats["sub"]["allow"]
    assert nats["sub"]["deny"] == ["_INBOX.frontend.>"]


def test_every_pair_of_keys_is_new() -> None:
    minter = Minter(SEED, timedelta(hours=1))
    assert len({minter.mint(NodeId("n"), node_type="backend", at=NOW).seed for _ in range(3)}) == 3


@pytest.mark.parametrize(
    "seed",
    ["", "x", "SA", "ä", nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_USER).decode(), SEED[:-4], "SA" + "A" * 56],
)
def test_a_seed_of_no_account_is_refused(seed: str) -> None:
    with pytest.raises(InvalidInput, match="an account starts with SA"):
        Minter(seed, timedelta(hours=1))
