"""How to reach NATS: plain values and the settings they come from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from corral.base.errors import InvalidInput
from corral.base.setting_kinds import EXISTING_FILE, SECRET, SettingKind, hide_password
from corral.base.settings import setting
from corral.bus.endpoints import parse_endpoints


def _read_nats_urls(text: str) -> str:
    try:
        parse_endpoints(text)
    except InvalidInput:
        raise ValueError from None
    return text.strip()


NATS_URLS: Final = SettingKind(
    placeholder="URL[,URL…]",
    allowed="a URL such as nats://10.0.0.1:4222, or several, comma-separated",
    read=_read_nats_urls,
    shown=hide_password,
    holds_password=lambda text: "@" in text,  # a user without a password is a token
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BusConfig:
    """One server or a cluster of them."""

    url: str = setting(
        NATS_URLS,
        """The NATS server, or several of one cluster, comma-separated. There is no default: a bus that nobody chose is
        one that nobody protects. A URL with a user or a token comes from the environment or the file only.""",
        name="nats_url",
        flag="--nats",
        aliases=("LOCALAI_NATS_URL",),
    )
    jwt: str = setting(
        SECRET,
        """User JWT for NATS; needs the seed beside it. None by default: the URL may carry a user instead, and where
        neither does, a user that a LocalAI frontend makes at registration is taken.""",
        name="nats_jwt",
        aliases=("LOCALAI_NATS_JWT",),
        default="",
        secret=True,
    )
    seed: str = setting(
        SECRET,
        "Seed that signs for the user JWT. None by default, as the JWT.",
        name="nats_seed",
        aliases=("LOCALAI_NATS_USER_SEED",),
        default="",
        secret=True,
    )
    tls_ca: Path | None = setting(
        EXISTING_FILE,
        "Certificates of the authorities that NATS servers are checked against. By default those of the system.",
        name="nats_tls_ca",
        aliases=("LOCALAI_NATS_TLS_CA",),
        default=None,
    )
    tls_cert: Path | None = setting(
        EXISTING_FILE,
        "Client certificate for NATS; needs its key beside it. None by default: few servers ask for one.",
        name="nats_tls_cert",
        aliases=("LOCALAI_NATS_TLS_CERT",),
        default=None,
    )
    tls_key: Path | None = setting(
        EXISTING_FILE,
        "Key of the client certificate. None by default, as the certificate.",
        name="nats_tls_key",
        aliases=("LOCALAI_NATS_TLS_KEY",),
        default=None,
    )
