"""Decides who may receive this machine's secrets, before anything is sent to a URL."""

from collections.abc import Sequence
from typing import Protocol

import aiohttp

from corral.base.errors import PeerUnavailable

TlsCheck = aiohttp.Fingerprint | None
"""The certificate that a connection must show; None for any that an authority vouches for."""


class OtherFleet(PeerUnavailable):
    """What answers at the URL is not the fleet that this machine joined. Nothing secret was sent."""


class Trust(Protocol):
    @property
    def pin(self) -> str:
        """How the fleet is known; empty when it is not."""

    async def check(self, url: str) -> TlsCheck:
        """What connections to this URL must show; HttpFailed, or PeerUnavailable when it is not to be trusted."""

    def forget(self, url: str) -> None:
        """Something went wrong there: check again before the next call."""


class NoPin:
    """Trusts the URLs of the settings, as far as their certificates go."""

    pin = ""

    async def check(self, url: str) -> TlsCheck:
        return None

    def forget(self, url: str) -> None:
        return


def same_problem(problems: Sequence[PeerUnavailable]) -> type[PeerUnavailable]:
    """The kind of error that stands for all of them: of several URLs, one that is only away may be the right one."""
    return OtherFleet if all(isinstance(problem, OtherFleet) for problem in problems) else PeerUnavailable
