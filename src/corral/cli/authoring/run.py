"""`corral backend run`: runs one backend on this machine, to try it."""

import asyncio
from typing import TYPE_CHECKING, Final

import click

from corral.cli.options import CorralCommand, command_sources, settings_options, warn
from corral.cli.output import say

if TYPE_CHECKING:
    from corral.worker.processes.process import Launch

_SETTINGS: Final = frozenset({"data", "backends", "system_backends"})


@click.command(cls=CorralCommand)
@click.argument("backend", metavar="NAME|DIR")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Where to serve gRPC.  [default: any free port]")
@click.option("--model-name", metavar="NAME", default="", help="Under which its own HTTP port serves the model.")
@click.option(
    "--ready-within",
    metavar="SECONDS",
    type=click.FloatRange(0.1, 3600),
    default=30.0,
    show_default=True,
    help="How long it may take to answer.",
)
@settings_options(worker=_SETTINGS)
def run(backend: str, port: int, model_name: str, ready_within: float) -> int:
    """Run a backend until you press Ctrl-C, without a fleet.

    It is started as a worker starts it: `run.sh --addr HOST:PORT` with a token in LOCALAI_GRPC_AUTH_TOKEN, which is
    yours if you have set one, and a new one otherwise. When it answers, its address is printed. What it writes goes to
    your terminal.
    """
    from datetime import timedelta

    from corral.processes.backend_run import find_backend, run_backend
    from corral.processes.local_backends import machine_config
    from corral.processes.settings import backend_environment

    sources = command_sources()
    home = find_backend(backend, machine_config(sources))
    warn(sources.warnings)

    def announce(launch: "Launch") -> None:
        say(f"{launch.backend} serves gRPC at {launch.address}, with the token {launch.token}")
        if launch.http_port is not None:
            place = f"http://127.0.0.1:{launch.http_port}"
            say(f"Once a model is loaded, OpenAI's API is at {place}, with the key {launch.http_key}")
        say("Ctrl-C ends it.")

    return asyncio.run(
        run_backend(
            home,
            announce,
            environment=backend_environment(sources.environment),
            port=port,
            model_name=model_name,
            ready_within=timedelta(seconds=ready_within),
        )
    )
