"""`corral backend push` and `corral backend index`: from an image on this machine to a registry and a gallery."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from corral.cli.options import CorralCommand, command_sources, settings_options, warn
from corral.cli.output import json_option, print_json, say
from corral.processes.configs import images_config

if TYPE_CHECKING:
    from corral.imaging.gallery_index import Listed
    from corral.imaging.push import PushResult
    from corral.oci.config import ImagesConfig
    from corral.oci.references import Reference


registry_options = settings_options(images=frozenset({"registry_auth_file", "plain_registries", "pull_parallel"}))
"""Adds the settings for registries: logins and plain HTTP."""


def images() -> "ImagesConfig":
    """The running command's settings for registries."""

    sources = command_sources()
    config = images_config(sources)
    warn(sources.warnings)
    return config


def pushed_sentence(result: "PushResult") -> str:
    from corral.base.words import format_size

    spared = f", {format_size(result.spared_bytes)} were there" if result.spared_bytes else ""
    return f"Pushed {result.reference}: {format_size(result.sent_bytes)} sent{spared}."


async def push_image(layout: Path, reference: "Reference", *, mount_from: str) -> "PushResult":
    """Push a layout, and print the notes about it as warnings."""
    from corral.base.clock import SystemClock
    from corral.imaging.push import push_layout

    result = await push_layout(layout, reference, config=images(), clock=SystemClock(), mount_from=mount_from)
    warn(list(result.notes))
    return result


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

    from corral.oci.references import parse_reference

    result = asyncio.run(push_image(layout, parse_reference(reference), mount_from=mount_from))
    if as_json:
        print_json(result)
    else:
        say(pushed_sentence(result))
        say(result.digest)


@click.command(cls=CorralCommand)
@click.argument("listed", metavar="[CAPABILITY=]IMAGE...", nargs=-1, required=True)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File to write.")
@registry_options
def index(listed: tuple[str, ...], output: Path) -> None:
    """Make a gallery index that lists images.

    IMAGE is a layout, an archive of one, or an image in a registry; its annotations give the entry's name and words.
    Where CAPABILITY is given (default, nvidia-cuda-12, amd …) images of one name become builds, and a meta backend of
    that name leads each machine to its own. Paths of layouts are written relative to the index.
    """
    import asyncio

    from corral.base.errors import PathNotUsable
    from corral.imaging.gallery_index import make_index

    entries = asyncio.run(_list_images(listed))
    text = make_index(entries, folder=output.parent)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        draft = output.with_name(f".{output.name}.part")
        draft.write_text(text, encoding="utf-8")
        draft.replace(output)
    except OSError as error:
        raise PathNotUsable(f"{output} cannot be written: {error.strerror}; --output names another place") from error
    say(f"Wrote {output} with {len(entries)} images.")


async def _list_images(words: tuple[str, ...]) -> "list[Listed]":
    from corral.base.clock import SystemClock
    from corral.imaging.gallery_index import Listed
    from corral.imaging.image_facts import image_facts

    config, clock, entries = images(), SystemClock(), []
    for word in words:
        # A capability has neither a slash nor a colon, so a path may contain an `=`.
        capability, equals, image = word.partition("=")
        if not equals or not capability or any(sign in capability for sign in "/:."):
            capability, image = "", word
        facts = await image_facts(image, config=config, clock=clock)
        entries.append(Listed(facts=facts, capability=capability))
    return entries
