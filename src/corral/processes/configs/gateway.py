"""What a gateway process is configured with."""

import math
from urllib.parse import urlsplit

from corral.base.errors import SettingInvalid
from corral.gateway.config import GatewayConfig, Limits, TimeOuts
from corral.processes.settings_kinds import HTTP_URL, hide_password
from corral.processes.settings_table import GatewaySettings
from corral.processes.tls import client_tls, server_tls


def gateway_config(settings: GatewaySettings, *, key: str = "") -> GatewayConfig:
    """What a gateway process is configured with; a key that was handed over wins over the setting."""
    control_key = key or settings.key
    if not control_key:
        raise SettingInvalid("key", "a key with the scope gateway is needed: set CORRAL_GATEWAY_KEY")
    is_secure = settings.control.startswith("https://")
    return GatewayConfig(
        host=settings.host,
        port=settings.port,
        control_url=_control_url(settings.control),
        control_key=control_key,
        control_tls=client_tls(settings.control_ca) if is_secure else None,
        tls=server_tls(settings.tls_cert, settings.tls_key),
        plain_port=settings.plain_port,
        expose_node=settings.expose_node,
        time_outs=TimeOuts(
            load=settings.load_wait.total_seconds() or math.inf,
            queue=settings.queue_wait.total_seconds(),
            first_byte=settings.first_byte_timeout.total_seconds(),
            idle=settings.idle_timeout.total_seconds(),
            body=settings.body_timeout.total_seconds(),
        ),
        limits=Limits(
            body=settings.max_request,
            bodies=max(Limits().bodies, 2 * settings.max_request),
            body_speed=settings.min_body_speed,
            source_connections=settings.source_connections,
            source_registrations=settings.source_registrations,
        ),
        trusted_proxies=settings.trusted_proxies,
        cors_origins=settings.cors_origins,
        max_view_age=settings.max_view_age,
        reuse_port=settings.reuse_port,
    )


def _control_url(text: str) -> str:
    """Nothing but where to dial: a path, a query or a login would be dropped silently."""
    if text.startswith("unix:/"):
        return text
    try:
        return HTTP_URL.read(text if urlsplit(text).path in ("", "/") else "")
    except ValueError:
        allowed = "http://HOST:PORT or https://HOST:PORT of a frontend, or unix: and the full path of a socket"
        raise SettingInvalid("control", f"{hide_password(text)!r} cannot be used; allowed is {allowed}") from None
