"""Settings that several groups have, word for word."""

from typing import Any

from corral.processes.settings_kinds import EXISTING_FILE, HOST, PORT
from corral.processes.settings_sources import setting


def public_host() -> Any:
    return setting(
        HOST,
        "Address to listen on. Loopback by default: nothing is open to the network that nobody asked for.",
        flag="--host",
        env=("CORRAL_HOST",),
        default="127.0.0.1",
    )


def public_port() -> Any:
    return setting(
        PORT,
        "Port to listen on; 0 takes a free one. 8080 is what LocalAI's clients expect.",
        flag="--port",
        env=("CORRAL_PORT",),
        default=8080,
    )


def public_certificate() -> Any:
    return setting(
        EXISTING_FILE,
        """Certificate of the public port in PEM form, with those between it and its authority; needs its key beside
        it. The port then speaks HTTPS and nothing else. None by default: on loopback it would protect nothing, and a
        certificate cannot be guessed.""",
        flag="--tls-cert",
        env=("CORRAL_TLS_CERT",),
        default=None,
    )


def public_key() -> Any:
    return setting(
        EXISTING_FILE,
        "Key of the certificate in PEM form, without a password. None by default, as the certificate.",
        flag="--tls-key",
        env=("CORRAL_TLS_KEY",),
        default=None,
    )


def nats_authorities() -> Any:
    return setting(
        EXISTING_FILE,
        "Certificates of the authorities that NATS servers are checked against. By default those of the system.",
        flag="--nats-tls-ca",
        env=("CORRAL_NATS_TLS_CA", "LOCALAI_NATS_TLS_CA"),
        default=None,
    )


def nats_certificate() -> Any:
    return setting(
        EXISTING_FILE,
        "Client certificate for NATS; needs its key beside it. None by default: few servers ask for one.",
        flag="--nats-tls-cert",
        env=("CORRAL_NATS_TLS_CERT", "LOCALAI_NATS_TLS_CERT"),
        default=None,
    )


def nats_key() -> Any:
    return setting(
        EXISTING_FILE,
        "Key of the client certificate. None by default, as the certificate.",
        flag="--nats-tls-key",
        env=("CORRAL_NATS_TLS_KEY", "LOCALAI_NATS_TLS_KEY"),
        default=None,
    )
