"""How to reach NATS: plain values, filled by `app/configs/`."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class BusConfig:
    """One server or a cluster of them."""

    url: str = field(repr=False)
    """One URL or several, comma-separated. May carry a user and a password."""
    jwt: str = field(default="", repr=False)
    """A user JWT; needs the seed beside it."""
    seed: str = field(default="", repr=False)
    """The user seed that proves the JWT is ours."""
    tls_ca: Path | None = None
    """Certificate authority of the servers, where it is not one that the machine trusts."""
    tls_cert: Path | None = None
    """Client certificate; needs the key beside it."""
    tls_key: Path | None = None
