"""JWTs for nodes and frontends, signed by the account, and how they are revoked."""

import base64
import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import nkeys
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.base.errors import InvalidInput
from corral.base.ids import NodeId
from corral.bus.minting import MOST_SUBSCRIPTIONS, IssuedUser, Minter
from corral.bus.revoking import with_revocations

NOW = datetime(2026, 11, 16, 10, 0, tzinfo=UTC)
SEED = nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_ACCOUNT).decode()
ACCOUNT = nkeys.from_seed(bytearray(SEED.encode()))


def opened(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def claims_of(jwt: str) -> dict[str, Any]:
    claims: dict[str, Any] = json.loads(opened(jwt.split(".")[1]))
    return claims


def minted(node_id: str = "n", *, lives: timedelta = timedelta(hours=1), **changes: Any) -> IssuedUser:
    whom = {"node_type": "backend", "is_corral": False, "approved_at": NOW, "at": NOW, **changes}
    return Minter(SEED, lives).mint(NodeId(node_id), **whom)


def test_the_claims_are_localai_s_and_its_lists_less_what_its_workers_never_use() -> None:
    issued = minted("a.b c", lives=timedelta(hours=24))
    header, body, signature = issued.user.jwt.split(".")
    assert json.loads(opened(header)) == {"typ": "JWT", "alg": "ed25519-nkey"}
    assert ACCOUNT.verify(f"{header}.{body}".encode(), opened(signature))
    claims = claims_of(issued.user.jwt)
    account = ACCOUNT.public_key.decode()
    assert claims["sub"] == nkeys.from_seed(bytearray(issued.user.seed.encode())).public_key.decode()
    assert claims["sub"] == issued.public_key
    assert (claims["iss"], claims["iat"], claims["exp"]) == (account, int(NOW.timestamp()), claims["iat"] + 86400)
    assert issued.expires_at == NOW + timedelta(hours=24)
    assert claims["name"] == "localai-backend-a-b-c"
    assert claims["nats"] == {
        "pub": {"allow": ["nodes.a-b-c.backend.install.*.progress", "_INBOX.frontend.a-b-c.>"]},
        "sub": {"allow": ["nodes.a-b-c.>"], "deny": ["nodes.a-b-c.backend.install.*.progress"]},
        "subs": MOST_SUBSCRIPTIONS,
        "data": -1,
        "payload": -1,
        "issuer_account": account,
        "type": "user",
        "version": 2,
    }


def test_a_corral_node_says_its_own_reports_within_a_limit() -> None:
    claims = claims_of(minted(is_corral=True).user.jwt)
    assert claims["name"] == "corral-backend-n"
    reports = ["nodes.n.backend.install.*.progress", "nodes.n.corral.replica.>", "nodes.n.corral.inventory"]
    assert claims["nats"]["pub"] == {"allow": [*reports, "_INBOX.frontend.n.>"]}
    assert claims["nats"]["sub"] == {"allow": ["nodes.n.>"], "deny": reports}
    assert claims["nats"]["payload"] == 1024 * 1024


def test_a_jwt_s_id_is_the_digest_of_the_rest() -> None:
    claims = claims_of(minted().user.jwt)
    id = claims.pop("jti")
    digest = hashlib.new("sha512_256", json.dumps(claims, separators=(",", ":")).encode()).digest()
    assert id == base64.b32encode(digest).decode().rstrip("=")


def test_an_agent_hears_what_it_subscribes_to_when_it_starts() -> None:
    nats = claims_of(minted(node_type="agent").user.jwt)["nats"]
    assert nats["pub"]["allow"] == ["_INBOX.frontend.n.>"]
    assert {"nodes.n.backend.stop", "agent.execute", "mcp.discovery"} <= set(nats["sub"]["allow"])
    assert not [subject for subject in nats["sub"]["allow"] if subject.startswith(("_INBOX", "nodes.n.>"))]


def test_the_key_stays_until_the_next_approval_and_belongs_to_one_node() -> None:
    key = minted().public_key
    assert minted(at=NOW + timedelta(days=1), is_corral=True).public_key == key
    assert minted(approved_at=NOW + timedelta(microseconds=1)).public_key != key
    assert minted("m").public_key != key
    other = Minter(nkeys.encode_seed(bytes(31) + b"1", nkeys.PREFIX_BYTE_ACCOUNT).decode(), timedelta(hours=1))
    whom = {"node_type": "backend", "is_corral": False, "approved_at": NOW, "at": NOW}
    assert other.mint(NodeId("n"), **whom).public_key != key


def test_a_frontend_s_user_is_new_each_time_and_does_not_end() -> None:
    minter = Minter(SEED, timedelta(hours=1))
    users = [minter.mint_frontend(at=NOW) for _ in range(3)]
    assert len({user.seed for user in users}) == 3
    assert "exp" not in claims_of(users[0].jwt)


revocable = st.dictionaries(st.text("ABC", min_size=1, max_size=3), st.integers(1, 10**10), max_size=5)


@given(before=revocable, ours=revocable, ended=st.sets(st.text("ABC", min_size=1, max_size=3), max_size=3))
def test_revocations_are_added_and_those_of_others_stay(
    before: dict[str, int], ours: dict[str, int], ended: set[str]
) -> None:
    ended -= ours.keys()
    claims = {"iat": int(NOW.timestamp()) + 50, "sub": "A", "nats": {"limits": {"conn": 5}, "revocations": before}}
    revoked = {key: datetime.fromtimestamp(at, UTC) for key, at in ours.items()}
    changed = with_revocations(claims, revoked, ended, now=NOW)
    expected = {key: at for key, at in before.items() if key not in ended} | ours
    if changed is None:
        assert expected == before
        return
    assert changed["nats"] == {"limits": {"conn": 5}, "revocations": expected}
    assert changed["iat"] > claims["iat"]
    assert with_revocations(changed, revoked, ended, now=NOW) is None


@pytest.mark.parametrize(
    "seed",
    ["", "x", "SA", "ä", nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_USER).decode(), SEED[:-4], "SA" + "A" * 56],
)
def test_a_seed_of_no_account_is_refused(seed: str) -> None:
    with pytest.raises(InvalidInput, match="an account starts with SA"):
        Minter(seed, timedelta(hours=1))
