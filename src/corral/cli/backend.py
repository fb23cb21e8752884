"""`corral backend`: make backends, and show who made them. Needs no frontend."""

import click

from corral.cli.backend_sign import generate_keys, sign


@click.group()
def backend() -> None:
    """Make backends, and sign them."""


backend.add_command(generate_keys)
backend.add_command(sign)
