"""What a gateway is configured with, and what is said when a setting or a certificate cannot be used."""

import math
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from corral.base.errors import SettingInvalid
from corral.frontend.config import ControlConfig
from corral.gateway.config import GatewayConfig, Limits, TimeOuts
from corral.processes.configs import client_tls, control_config, gateway_config, server_tls
from corral.processes.settings import gather
from corral.processes.settings_sources import resolve
from tests.kit.certificates import Authority

GATEWAY = {"HOME": "/home/someone", "CORRAL_CONTROL_URL": "http://frontend:8080", "CORRAL_GATEWAY_KEY": "key"}
FRONTEND = {"HOME": "/home/someone", "CORRAL_NATS_URL": "nats://bus:4222"}


def config(**environment: str) -> GatewayConfig:
    return gateway_config(resolve(GatewayConfig, gather({}, {**GATEWAY, **environment})))


def refused(**environment: str) -> str:
    with pytest.raises(SettingInvalid) as error:
        config(**environment)
    return str(error.value)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def test_defaults_are_those_of_the_gateway_itself() -> None:
    made = config()
    assert (made.time_outs, made.limits, made.tls, made.max_view_age) == (TimeOuts(), Limits(), None, None)
    assert not made.expose_node


def test_every_setting_of_the_data_plane_has_an_effect() -> None:
    made = config(
        CORRAL_QUEUE_WAIT="5s",
        CORRAL_FIRST_BYTE_TIMEOUT="1m",
        CORRAL_IDLE_TIMEOUT="7s",
        CORRAL_MAX_REQUEST="512MiB",
        CORRAL_MAX_VIEW_AGE="1h",
        CORRAL_EXPOSE_NODE="true",
        CORRAL_PLAIN_PORT="8081",
        CORRAL_BODY_TIMEOUT="2m",
        CORRAL_MIN_BODY_SPEED="4KiB",
        CORRAL_SOURCE_CONNECTIONS="9",
        CORRAL_SOURCE_REGISTRATIONS="0",
        CORRAL_TRUSTED_PROXIES="10.0.0.5, fd00::/8",
        CORRAL_CORS_ORIGINS="https://Chat.example/, http://localhost:3000",
    )
    assert made.cors_origins == ("https://chat.example", "http://localhost:3000")
    assert (made.time_outs.body, made.limits.body_speed, made.limits.source_connections) == (120, 4096, 9)
    assert made.limits.source_registrations == 0
    assert made.trusted_proxies == (ip_network("10.0.0.5/32"), ip_network("fd00::/8"))
    assert (made.time_outs.queue, made.time_outs.first_byte, made.time_outs.idle) == (5, 60, 7)
    assert (made.limits.body, made.limits.bodies) == (512 << 20, 1024 << 20)
    assert (made.max_view_age, made.expose_node, made.plain_port) == (timedelta(hours=1), True, 8081)


@pytest.mark.parametrize("bad", ["chat.example", "https://chat.example/page", "null", "https://me@chat.example"])
def test_an_origin_that_no_browser_sends_is_refused(bad: str) -> None:
    assert "CORRAL_CORS_ORIGINS" in refused(CORRAL_CORS_ORIGINS=bad)


def test_any_origin_can_be_allowed() -> None:
    assert config(CORRAL_CORS_ORIGINS="*").cors_origins == ("*",)


def test_a_trusted_proxy_that_is_no_address_is_named() -> None:
    assert "CORRAL_TRUSTED_PROXIES" in refused(CORRAL_TRUSTED_PROXIES="proxy.lan")


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("0", math.inf), ("0s", math.inf)])
def test_localai_s_load_wait_means_the_same_here(text: str, seconds: float) -> None:
    assert config(LOCALAI_MODEL_LOAD_WAIT=text).time_outs.load == seconds
    assert config(LOCALAI_MODEL_LOAD_WAIT="5s", CORRAL_LOAD_WAIT=text).time_outs.load == seconds


def test_localai_s_node_header_means_the_same_here() -> None:
    assert config(LOCALAI_EXPOSE_NODE_HEADER="true").expose_node


def test_localai_s_time_outs_of_loads_mean_the_same_here() -> None:
    environment = {"LOCALAI_NATS_MODEL_LOAD_TIMEOUT": "30s", "LOCALAI_NATS_BACKEND_INSTALL_TIMEOUT": "20m"}
    policy = control_config(resolve(ControlConfig, gather({}, {**FRONTEND, **environment}))).loads
    assert (policy.install, policy.load_time(0), policy.load_time(100 << 30)) == (
        timedelta(minutes=20),
        timedelta(seconds=30),
        timedelta(seconds=30),
    )
    by_size = control_config(resolve(ControlConfig, gather({}, FRONTEND))).loads
    assert by_size.load_time(3 << 30) == timedelta(minutes=6)


@pytest.mark.parametrize("url", ["http://frontend:8080", "https://frontend", "http://[::1]:8080/", "unix:/run/c.sock"])
def test_control_may_be_a_url_or_a_socket(url: str) -> None:
    made = config(CORRAL_CONTROL_URL=url)
    assert made.control_url == url.rstrip("/")
    assert (made.control_tls is not None) == url.startswith("https:")


@pytest.mark.parametrize(
    "url", ["frontend:8080", "ftp://x", "http://", "http://x/path", "http://x:99999", "unix:relative", "http://x?y=1"]
)
def test_another_control_is_refused_with_what_is_allowed(url: str) -> None:
    shown = url.replace("?y=1", "?***")
    assert refused(CORRAL_CONTROL_URL=url) == (
        f'control: "{shown}" from the environment variable CORRAL_CONTROL_URL cannot be used; '
        "allowed is http://HOST:PORT or https://HOST:PORT of a frontend, or unix: and the full path of a socket"
    )


def test_a_password_in_the_control_url_is_not_shown() -> None:
    assert "secret" not in refused(CORRAL_CONTROL_URL="http://me:secret@frontend:8080")


def test_a_missing_key_is_told_with_its_variable() -> None:
    sentence = "key: a key with the scope gateway is needed: set CORRAL_GATEWAY_KEY"
    assert refused(CORRAL_GATEWAY_KEY="") == sentence


# Certificates.


def test_a_certificate_and_its_key_make_the_port_speak_tls(authority: Authority) -> None:
    certificate, key = authority.issue("gateway")
    made = config(CORRAL_TLS_CERT=str(certificate), CORRAL_TLS_KEY=str(key))
    assert made.tls is not None
    assert made.tls.minimum_version.name == "TLSv1_2"


def test_one_needs_the_other(authority: Authority) -> None:
    certificate, key = authority.issue("gateway")
    assert refused(CORRAL_TLS_CERT=str(certificate)) == "tls_key: is needed beside tls_cert; set CORRAL_TLS_KEY"
    assert refused(CORRAL_TLS_KEY=str(key)) == "tls_cert: is needed beside tls_key; set CORRAL_TLS_CERT"


def told(certificate: Path, key: Path) -> str:
    with pytest.raises(SettingInvalid) as error:
        server_tls(certificate, key)
    return str(error.value)


def test_files_that_cannot_be_used_are_told_by_the_name_of_their_setting(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("gateway")
    _, other = authority.issue("other")
    nonsense, folder, gone = tmp_path / "nonsense", tmp_path / "folder", tmp_path / "gone"
    nonsense.write_text("hello")
    folder.mkdir()

    assert told(certificate, other) == f"tls_key: {other} is not the key of the certificate in {certificate}"
    assert told(nonsense, key) == f"tls_cert: {nonsense} holds no certificate in PEM form"
    assert told(certificate, nonsense) == f"tls_key: {nonsense} holds no private key in PEM form"
    assert told(certificate, gone) == f"tls_key: {gone} cannot be read: No such file or directory"
    assert told(folder, key) == f"tls_cert: {folder} cannot be read: Is a directory"
    assert refused(CORRAL_TLS_CERT=str(gone), CORRAL_TLS_KEY=str(key)).startswith("tls_cert: ")


def test_an_encrypted_key_is_refused_and_nobody_is_asked(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("gateway")
    plain = serialization.load_pem_private_key(key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    how = serialization.BestAvailableEncryption(b"password")
    locked.write_bytes(plain.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))

    assert told(certificate, locked) == (
        "tls_key: is encrypted; Corral starts without a person, so it needs a key without a password"
    )


def test_authorities_that_are_none_are_refused(authority: Authority, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("hello")
    url = "https://frontend:8443"
    sentence = refused(CORRAL_CONTROL_URL=url, CORRAL_CONTROL_CA=str(nonsense))
    assert sentence == f"control_ca: {nonsense} holds no certificate in PEM form"
    assert config(CORRAL_CONTROL_URL=url, CORRAL_CONTROL_CA=str(authority.file)).control_tls is not None
    assert client_tls(None).check_hostname
