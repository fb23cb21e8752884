"""A worker sends secrets to the fleet that it joined, and to nobody else."""

import base64
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from corral.base.errors import PeerUnavailable
from corral.base.http_client import open_session
from corral.base.tls_keys import public_key_hash
from corral.frontend.nodes.fleet_key import FleetKey
from corral.wire.joining import FleetProof, proof_message
from corral.wire.registration import RegisterRequest
from corral.worker.membership.frontend_client import FrontendClient
from corral.worker.membership.pinned_fleet import PinnedFleet
from corral.worker.membership.trust import OtherFleet
from tests.kit.certificates import Authority

SECRET = "s" * 43


@dataclass
class Peer:
    """A frontend, or what pretends to be one; it keeps every bearer that it is sent."""

    key: FleetKey
    url: str = ""
    bearers: list[str] = field(default_factory=list)
    answer: Callable[[FleetProof, str], FleetProof] = lambda proof, nonce: proof
    status: int = 200

    async def prove(self, request: web.Request) -> web.Response:
        nonce = request.query["nonce"]
        proof = self.answer(await self.key.prove(nonce, at=datetime.now(UTC)), nonce)
        return web.Response(body=msgspec.json.encode(proof), status=self.status)

    async def register(self, request: web.Request) -> web.Response:
        self.bearers.append(request.headers.get("Authorization", ""))
        return web.json_response({"id": "n1"})


@asynccontextmanager
async def serving(peer: Peer, tls: tuple[Path, Path] | None = None) -> AsyncIterator[Peer]:
    app = web.Application()
    app.add_routes([web.get("/api/v1/fleet", peer.prove), web.post("/api/node/register", peer.register)])
    runner = web.AppRunner(app)
    await runner.setup()
    context = None
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        scheme = "http" if tls is None else "https"
        peer.url = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}"
        yield peer
    finally:
        await runner.cleanup()


@asynccontextmanager
async def client(peer: Peer, pin: str) -> AsyncIterator[tuple[FrontendClient, PinnedFleet]]:
    async with open_session(connect_timeout=timedelta(seconds=5), timeout=timedelta(seconds=10)) as session:
        fleet = PinnedFleet(session, pin)
        yield FrontendClient(session, [peer.url], fleet), fleet


def new_peer(*certificates: Path, **changes: object) -> Peer:
    return Peer(key=FleetKey(Ed25519PrivateKey.generate(), certificates, public_key_hash), **changes)  # type: ignore[arg-type]


BODY = RegisterRequest(name="w", token=SECRET)


async def test_the_first_fleet_is_pinned_and_then_no_other_gets_the_secret() -> None:
    async with serving(new_peer()) as ours, client(ours, "") as (frontend, fleet):
        assert (await frontend.register(BODY)).id == "n1"
        assert fleet.pin == ours.key.pin
    async with serving(new_peer()) as other, client(other, fleet.pin) as (frontend, _):
        with pytest.raises(OtherFleet, match="is another fleet"):
            await frontend.register(BODY)
        assert other.bearers == []


def _forged(proof: FleetProof, nonce: str) -> FleetProof:
    return msgspec.structs.replace(proof, signature=base64.b64encode(b"x" * 64).decode())


def _replayed(proof: FleetProof, nonce: str) -> FleetProof:
    """Under the right key, for a nonce of another day."""
    key = Ed25519PrivateKey.generate()
    signature = base64.b64encode(key.sign(proof_message("other", []))).decode()
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    return msgspec.structs.replace(proof, key=public, signature=signature)


def _garbage(proof: FleetProof, nonce: str) -> FleetProof:
    return msgspec.structs.replace(proof, key="!", signature="?")


@pytest.mark.parametrize("answer", [_forged, _replayed, _garbage])
async def test_whoever_cannot_prove_it_gets_nothing(answer: Callable[[FleetProof, str], FleetProof]) -> None:
    async with serving(new_peer(answer=answer)) as liar, client(liar, "") as (frontend, fleet):
        with pytest.raises(OtherFleet, match="cannot prove it"):
            await frontend.register(BODY)
        assert (liar.bearers, fleet.pin) == ([], "")


@pytest.mark.parametrize(("status", "kind"), [(404, OtherFleet), (401, OtherFleet), (503, PeerUnavailable)])
async def test_what_does_not_say_who_it_is_gets_nothing(status: int, kind: type[PeerUnavailable]) -> None:
    async with serving(new_peer(status=status)) as localai, client(localai, "") as (frontend, _):
        with pytest.raises(kind) as failed:
            await frontend.register(BODY)
        assert type(failed.value) is kind
        assert localai.bearers == []


async def test_a_certificate_of_nobody_is_trusted_when_the_pinned_fleet_shows_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    ours, renewed, thief = (authority.issue(name) for name in ("ours", "renewed", "thief"))
    peer = new_peer(ours[0])
    async with serving(peer, ours), client(peer, peer.key.pin) as (frontend, _):
        assert (await frontend.register(BODY)).id == "n1"
    async with serving(peer, ours), client(peer, "") as (frontend, _):
        with pytest.raises(OtherFleet, match="corral nodes invite"):
            await frontend.register(BODY)
    # Somebody in between who passes the question on to the fleet has another certificate than the fleet names.
    peer.bearers.clear()
    async with serving(peer, thief), client(peer, peer.key.pin) as (frontend, _):
        with pytest.raises(OtherFleet, match="somebody may be listening in between"):
            await frontend.register(BODY)
        assert peer.bearers == []
    # A renewed certificate has another key; the fleet's is the same.
    ours[0].write_bytes(renewed[0].read_bytes())
    async with serving(peer, renewed), client(peer, peer.key.pin) as (frontend, _):
        assert (await frontend.register(BODY)).id == "n1"
