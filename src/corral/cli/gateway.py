"""`corral gateway`: a gateway alone, for more serving than one frontend does."""

import click

from corral.cli.options import CorralCommand, process_sources, settings_options, warn


@click.command(cls=CorralCommand)
@settings_options(gateway=None, log=None)
@click.option("--key-descriptor", type=int, default=None, hidden=True)
def gateway(key_descriptor: int | None) -> None:
    """Run a gateway alone, to serve more.

    It has a public port, and relays requests to replicas and everything else to control. It needs the URL of a
    frontend and a key of the scope gateway, and neither the database nor NATS.
    """
    from corral.base.logs import LogOutput, set_up_logs
    from corral.base.processes import secret_from
    from corral.gateway.config import GatewayConfig
    from corral.processes.gateway import gateway_config, main
    from corral.processes.settings_sources import resolve

    found = process_sources()
    logs = resolve(LogOutput, found)
    config = gateway_config(resolve(GatewayConfig, found), key=secret_from(key_descriptor))
    warn(found.warnings)
    set_up_logs(logs.name or "gateway", logs)
    main(config)
