"""Checks of gateways on other machines: what they pass on must not seem to come from one address."""

import contextlib
import ipaddress
from collections.abc import Iterable

from corral.base.ids import parsed_ip
from corral.frontend.api.route import AdminContext
from corral.frontend.diagnosis.doctor import OK, WARNING
from corral.frontend.serving.gateways.reports import SeenGateway
from corral.wire.nodes import Finding


async def check_gateways(context: AdminContext) -> Finding:
    reporting = [gateway for gateway in context.serving.gateways.seen() if not gateway.is_silent]
    if context.config.socket is None:  # no gateway is in front of this frontend, which believes nobody
        return Finding(check="gateways", level=OK, summary=f"{len(reporting)} report")
    unnamed = unnamed_gateways(reporting)
    if not unnamed:
        return Finding(check="gateways", level=OK, summary=f"{len(reporting)} report")
    addresses = ", ".join(unnamed)
    return Finding(
        check="gateways",
        level=WARNING,
        summary=f"everybody who reaches the API through the gateway at {addresses} counts as one address there",
        remedy=f"Name {addresses} in gateway.trusted_proxies of this frontend, so that limits count clients.",
    )


def unnamed_gateways(gateways: Iterable[SeenGateway]) -> list[str]:
    """Addresses of gateways elsewhere that a gateway of this frontend does not believe. Those that do not tell whom
    they believe count as believing all."""
    gateways = list(gateways)
    doors = [gateway.trusted_proxies for gateway in gateways if not gateway.address]
    trusted_lists = [networks for networks in doors if networks is not None]
    elsewhere = {gateway.address for gateway in gateways if gateway.address}
    return sorted(address for address in elsewhere if any(not _is_in(address, networks) for networks in trusted_lists))


def _is_in(address: str, networks: Iterable[str]) -> bool:
    parsed = parsed_ip(address)
    for network in networks:
        with contextlib.suppress(ValueError):
            if parsed is not None and parsed in ipaddress.ip_network(network):
                return True
    return False
