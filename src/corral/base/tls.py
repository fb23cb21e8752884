"""TLS contexts of certificates and keys that are only in memory: nothing is written to disk."""

import os
import ssl
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from corral.base.values import PartlyPrinted

_IN_MEMORY: Final = sys.platform == "linux"


class TlsIdentity(PartlyPrinted, frozen=True, kw_only=True):
    """A certificate with its key, and the authority that peers are checked against; all in PEM form."""

    unprinted = ("key",)

    certificate: str
    key: str
    authority: str


class TlsPeer(msgspec.Struct, frozen=True, kw_only=True):
    """How a peer is dialled that must prove its name."""

    address: str
    """Host and port."""
    context: ssl.SSLContext
    name: str
    """What its certificate must be good for."""


def client_context(identity: TlsIdentity) -> ssl.SSLContext:
    """A context for calls to peers that have a certificate of the same authority, and want one from us."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _equip(context, identity)
    return context


def server_context(identity: TlsIdentity) -> ssl.SSLContext:
    """A context for a server that takes only callers with a certificate of the same authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    _equip(context, identity)
    return context


def uris_of(peer: ssl.SSLObject | ssl.SSLSocket | None) -> list[str]:
    """The URIs among the names of a peer's certificate, which the handshake has verified."""
    certificate = peer.getpeercert() if peer is not None else None
    names = certificate.get("subjectAltName", ()) if certificate else ()
    return [str(name[1]) for name in names if name[0] == "URI"]


def _equip(context: ssl.SSLContext, identity: TlsIdentity) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=identity.authority)
    with _as_file((identity.certificate + identity.key).encode()) as path:
        context.load_cert_chain(path)


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path under which OpenSSL reads this content: of memory where the system can, else of a private file."""
    if not _IN_MEMORY:
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name
        return
    descriptor = os.memfd_create("certificate")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
