"""TLS to the server: whom to believe, who we are, and never in the clear when it was asked for."""

from pathlib import Path
from typing import Any

import pytest

from corral.base.errors import InvalidInput
from corral.bus.config import BusConfig
from corral.bus.problems import ProblemKind
from tests.kit.certificates import Authority
from tests.kit.plain_nats import PlainNats
from tests.kit.ports import lasting_port


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def tls_of(authority: Authority) -> dict[str, object]:
    certificate, key = authority.issue("server")
    return {"cert_file": str(certificate), "key_file": str(key), "ca_file": str(authority.file)}


def tls_server(directory: Path, authority: Authority, **options: object) -> PlainNats:
    return PlainNats(directory, extra={"tls": {**tls_of(authority), **options}})


def url(server: PlainNats, scheme: str) -> str:
    return server.frontend_url.replace("nats://", f"{scheme}://")


@pytest.mark.parametrize("scheme", ["nats", "tls"])
async def test_a_server_of_a_known_authority_is_believed(
    tmp_path: Path, authority: Authority, open_bus: Any, heard: Any, scheme: str
) -> None:
    async with tls_server(tmp_path / "nats", authority) as server:
        config = BusConfig(url=url(server, scheme), tls_ca=authority.file)
        watched = await open_bus("", config=config)
        assert watched.bus.connected
        await watched.bus.subscribe("corral.news", heard)
        await watched.bus.publish("corral.news", b"secret")
        assert (await heard.next()).data == b"secret"
        await watched.bus.close()


async def test_a_server_of_an_unknown_authority_is_refused(tmp_path: Path, authority: Authority, open_bus: Any) -> None:
    async with tls_server(tmp_path / "nats", authority) as server:
        watched = await open_bus(url(server, "tls"))
        assert "CERTIFICATE_VERIFY_FAILED" in (await watched.has(ProblemKind.UNREACHABLE)).detail
        assert not watched.bus.connected


@pytest.mark.parametrize("reason", ["tls URL", "CA given"])
async def test_a_server_without_tls_gets_no_credentials(
    server: PlainNats, authority: Authority, open_bus: Any, reason: str
) -> None:
    if reason == "tls URL":
        config = BusConfig(url=url(server, "tls"))
    else:
        config = BusConfig(url=server.frontend_url, tls_ca=authority.file)

    watched = await open_bus("", config=config)

    assert "secure connection not available" in (await watched.has(ProblemKind.UNREACHABLE)).detail
    assert not watched.bus.connected


async def test_tls_that_the_server_only_offers_is_used_when_asked_for(
    tmp_path: Path, authority: Authority, open_bus: Any
) -> None:
    certificate, key = authority.issue("server")
    tls = {"cert_file": str(certificate), "key_file": str(key)}
    async with PlainNats(tmp_path / "nats", extra={"tls": tls, "allow_non_tls": True}) as server:
        watched = await open_bus("", config=BusConfig(url=url(server, "tls"), tls_ca=authority.file))
        assert watched.bus.connected
        assert watched.bus._link._client._transport._io_writer.get_extra_info("cipher")
        await watched.bus.close()


async def test_a_server_may_demand_our_certificate(tmp_path: Path, authority: Authority, open_bus: Any) -> None:
    certificate, key = authority.issue("client")
    async with tls_server(tmp_path / "nats", authority, verify=True) as server:
        bare = await open_bus("", config=BusConfig(url=url(server, "tls"), tls_ca=authority.file))
        await bare.has(ProblemKind.UNREACHABLE)
        assert not bare.bus.connected
        config = BusConfig(url=url(server, "tls"), tls_ca=authority.file, tls_cert=certificate, tls_key=key)
        assert (await open_bus("", config=config)).bus.connected


async def test_offered_authorities_come_change_and_go(
    tmp_path: Path, authority: Authority, server: PlainNats, open_bus: Any
) -> None:
    """What nobody can read changes nothing; without authorities a server needs no TLS any more."""
    other = Authority(tmp_path / "other")
    watched = await open_bus("", config=BusConfig(url=""), overlaps=True)
    async with PlainNats(tmp_path / "tls", port=lasting_port(), extra={"tls": tls_of(authority)}) as secured:
        watched.bus.use_servers(secured.frontend_url, authorities=other.file.read_text())
        assert "CERTIFICATE_VERIFY_FAILED" in (await watched.has(ProblemKind.UNREACHABLE)).detail
        watched.bus.use_servers(secured.frontend_url, authorities=authority.file.read_text(), gently=True)
        await watched.becomes(connected=True)
        for broken in ("no PEM", "kein PÉM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
            with pytest.raises(InvalidInput, match="NATS TLS CA: cannot use what the frontend offers"):
                watched.bus.use_servers(secured.frontend_url, authorities=broken)
        await watched.bus.flush()
    watched.bus.use_servers(server.frontend_url)
    await watched.becomes(connected=True)
