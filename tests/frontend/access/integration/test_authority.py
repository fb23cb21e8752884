"""The fleet's authority: one for all frontends, and what it signs for whom."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st

from corral.base.errors import InvalidInput
from corral.base.tls_keys import PrivateKey
from corral.bus.port import Bus
from corral.frontend.access.authority import SECRET_NAME, FleetAuthority
from corral.frontend.access.fleet_tls import FleetTls, FleetTlsPolicy
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import Secrets, SecretsKey
from corral.wire.fleet_tls import FleetRole
from tests.kit.clock import ManualClock
from tests.kit.fleet_tls import NODE, TestFleet
from tests.kit.frontend import REGISTRATION_TOKEN, TRUSTED_TOKEN, frontend_config, open_frontend

SECRET = "k" * 43
ON = FleetTlsPolicy(is_on=True, certificates_last=timedelta(hours=2))
HELLO = {"version": "1", "features": ["node-secret", "fleet-tls"], "secret": SECRET, "incarnation": "one"}


def csr() -> str:
    return PrivateKey().request()


def read(issued: Any) -> x509.Certificate:
    return x509.load_pem_x509_certificate(issued["certificate"].encode())


async def test_all_frontends_have_one_authority_and_its_key_is_sealed(database: Database, clock: ManualClock) -> None:
    secrets = await Secrets.open(database, SecretsKey.generate(), at=clock.now())
    first, second = await asyncio.gather(*(FleetAuthority.load(secrets, clock) for _ in range(2)))
    assert first.pem == second.pem == (await FleetAuthority.load(secrets, clock)).pem
    assert "PRIVATE KEY" in (await secrets.get(SECRET_NAME) or "")  # and in the database only sealed: see Secrets


async def test_a_node_gets_a_certificate_once_it_is_approved(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> None:
    config = frontend_config(tmp_path, tls=ON)
    async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as frontend:
        welcome: Any = (await frontend.register({"name": "w", "address": "10.0.0.1:5", "corral": HELLO})).json()
        assert "fleet-tls" in welcome["corral"]["features"]
        path = f"/api/v1/nodes/{welcome['id']}/certificate"
        pending = await frontend.call("POST", path, {"csr": csr()}, key=SECRET)
        assert pending.status == 409
        assert "waits for approval" in str(pending.json())
        await frontend.call("POST", f"/api/nodes/{welcome['id']}/approve")
        issued: Any = await frontend.call("POST", path, {"csr": csr()}, key=SECRET)
        assert issued.status == 200
        certificate = read(issued.json())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == [f"*.{welcome['id']}.node.corral.internal"]
        assert names.get_values_for_type(x509.UniformResourceIdentifier) == [f"corral://node/{welcome['id']}"]
        assert certificate.not_valid_after_utc == clock.now().replace(microsecond=0) + timedelta(hours=2)
        assert issued.json()["renew_after"] == 3600


@pytest.mark.parametrize("key", [REGISTRATION_TOKEN, "o" * 43])
async def test_neither_the_shared_token_nor_another_node_gets_a_node_s_certificate(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path, key: str
) -> None:
    config = frontend_config(tmp_path, tls=ON)
    async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as frontend:
        body = {"name": "w", "address": "10.0.0.1:5", "corral": HELLO}
        mine: Any = (await frontend.register(body, token=TRUSTED_TOKEN)).json()
        await frontend.register({**body, "corral": {**HELLO, "secret": "o" * 43}}, token=TRUSTED_TOKEN)
        answer = await frontend.call("POST", f"/api/v1/nodes/{mine['id']}/certificate", {"csr": csr()}, key=key)
        assert answer.status == 401


async def test_a_node_without_a_secret_gets_none(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> None:
    config = frontend_config(tmp_path, tls=ON)
    async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as frontend:
        body = {"name": "w", "address": "10.0.0.1:5"}
        node: Any = (await frontend.register(body, token=TRUSTED_TOKEN)).json()
        path = f"/api/v1/nodes/{node['id']}/certificate"
        answer = await frontend.call("POST", path, {"csr": csr()}, key=REGISTRATION_TOKEN)
        assert (answer.status, "a secret of its own" in str(answer.json())) == (403, True)


async def test_a_frontend_with_it_off_names_no_feature_and_signs_nothing(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> None:
    config = frontend_config(tmp_path)
    async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as frontend:
        body = {"name": "w", "address": "10.0.0.1:5", "corral": HELLO}
        welcome: Any = (await frontend.register(body, token=TRUSTED_TOKEN)).json()
        assert "fleet-tls" not in welcome["corral"]["features"]
        answer = await frontend.call("POST", f"/api/v1/nodes/{welcome['id']}/certificate", {"csr": csr()}, key=SECRET)
        assert (answer.status, "set fleet_tls" in str(answer.json())) == (409, True)


async def test_only_a_gateway_s_key_gets_the_certificate_of_a_gateway(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> None:
    config = frontend_config(tmp_path, tls=ON, gateway_key="corral_gateway-key-of-this-frontend")
    async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as frontend:
        path = "/api/v1/gateway/certificate"
        issued: Any = await frontend.call("POST", path, {"csr": csr()}, key=config.gateway_key)
        assert issued.status == 200
        certificate = read(issued.json())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == []
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]  # no gateway can pose as a node
        for key in (SECRET, REGISTRATION_TOKEN):
            assert (await frontend.call("POST", path, {"csr": csr()}, key=key)).status == 401
        for body in ({"csr": "x"}, {}, b"{", {"csr": "-----BEGIN CERTIFICATE REQUEST-----\n"}):
            assert (await frontend.call("POST", path, body, key=config.gateway_key)).status == 400


FLEET = TestFleet()


@given(st.text())
def test_no_text_but_a_request_is_signed(text: str) -> None:
    with pytest.raises(InvalidInput, match="certificate signing request"):
        FLEET.authority.issue(text, FleetRole.GATEWAY, lifetime=timedelta(hours=1))


def test_names_that_a_request_brings_along_are_ignored_and_other_keys_refused() -> None:
    wish = x509.SubjectAlternativeName([x509.DNSName("p1.other.node.corral.internal")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).add_extension(wish, critical=False)
    own = ec.generate_private_key(ec.SECP256R1())
    greedy = builder.sign(own, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    issued = FLEET.authority.issue(greedy, FleetRole.NODE, lifetime=timedelta(hours=1), node_id=NODE)
    certificate = x509.load_pem_x509_certificate(issued.certificate.encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [f"*.{NODE}.node.corral.internal"]

    other = builder.sign(rsa.generate_private_key(65537, 2048), hashes.SHA256())
    pem = other.public_bytes(serialization.Encoding.PEM).decode()
    with pytest.raises(InvalidInput, match="P-256"):
        FLEET.authority.issue(pem, FleetRole.NODE, lifetime=timedelta(hours=1), node_id=NODE)


@pytest.mark.parametrize("node_id", ["*", "a.b", "", "x" * 64])
def test_an_id_that_would_be_another_name_is_refused(node_id: str) -> None:
    with pytest.raises(InvalidInput, match="host name"):
        FLEET.authority.issue(csr(), FleetRole.NODE, lifetime=timedelta(hours=1), node_id=node_id)


async def test_control_renews_its_own_certificate_also_after_its_clock_was_set_back(clock: ManualClock) -> None:
    tls = FleetTls(TestFleet().authority, ON, clock)
    first = tls.file_server(NODE, "10.0.0.1:1").context
    clock.jump(-timedelta(days=30))
    await clock.advance(timedelta(minutes=59))
    assert tls.file_server(NODE, "10.0.0.1:1").context is first
    await clock.advance(timedelta(minutes=1))
    assert tls.file_server(NODE, "10.0.0.1:1").context is not first
