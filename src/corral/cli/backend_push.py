"""`corral backend push`: an image from this machine into a registry."""

from pathlib import Path

import click

from corral.cli.backend_images import images, pushed_sentence, registry_options
from corral.cli.options import CorralCommand, warn
from corral.cli.output import json_option, print_json, say


@click.command(cls=CorralCommand)
@click.argument("layout", type=click.Path(path_type=Path))
@click.argument("reference")
@click.option(
    "--mount-from", metavar="REPOSITORY", default="", help="Repository of the same registry to take layers from."
)
@json_option
@registry_options
def push(layout: Path, reference: str, mount_from: str, as_json: bool) -> None:
    """Push LAYOUT to a registry as REFERENCE.

    LAYOUT is what `corral backend build` made: a directory or an archive. What the registry has already is not sent.
    The tag comes last, so that a push that breaks off changes nothing that others see.
    """
    import asyncio

    from corral.base.clock import SystemClock
    from corral.imaging.push import push_layout
    from corral.oci.references import parse_reference

    result = asyncio.run(
        push_layout(layout, parse_reference(reference), config=images(), clock=SystemClock(), mount_from=mount_from)
    )
    warn(list(result.notes))
    if as_json:
        print_json(result)
    else:
        say(pushed_sentence(result))
        say(result.digest)
