"""Loads certificates for servers and clients; errors name the setting and the problem."""

import ssl
from pathlib import Path
from typing import NoReturn

from corral.base.errors import SettingInvalid


def server_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return None if TLS is not configured. SettingInvalid names the setting of the invalid file."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        missing, other = ("tls_cert", "tls_key") if certificate is None else ("tls_key", "tls_cert")
        raise SettingInvalid(missing, f"is needed beside {other}; set CORRAL_{missing.upper()}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _check_readable("tls_cert", certificate)
    _check_readable("tls_key", key)
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except ssl.SSLError as error:
        raise SettingInvalid(*_what_is_wrong(error, certificate, key)) from None
    return context


def client_tls(authorities: Path | None) -> ssl.SSLContext:
    """Return a context that trusts the system's authorities, or those of a file instead."""
    if authorities is None:
        return ssl.create_default_context()
    _check_readable("control_ca", authorities)
    try:
        return ssl.create_default_context(cafile=authorities)
    except ssl.SSLError:
        raise SettingInvalid("control_ca", f"{authorities} holds no certificate in PEM form") from None


def _check_readable(setting: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise SettingInvalid(setting, f"{path} cannot be read: {error.strerror}") from None


def _refuse_password() -> NoReturn:
    raise SettingInvalid(
        "tls_key", "is encrypted; Corral starts without a person, so it needs a key without a password"
    )


def _what_is_wrong(error: ssl.SSLError, certificate: Path, key: Path) -> tuple[str, str]:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "tls_key", f"{key} is not the key of the certificate in {certificate}"
    if b"PRIVATE KEY-----" not in key.read_bytes():
        return "tls_key", f"{key} holds no private key in PEM form"
    if b"-----BEGIN CERTIFICATE-----" not in certificate.read_bytes():
        return "tls_cert", f"{certificate} holds no certificate in PEM form"
    return "tls_cert", f"{certificate} and {key} cannot be used: {error.reason or error}"
