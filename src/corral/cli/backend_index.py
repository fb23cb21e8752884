"""`corral backend index`: a gallery index of images."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from corral.cli.backend_images import images, registry_options
from corral.cli.options import CorralCommand
from corral.cli.output import say

if TYPE_CHECKING:
    from corral.imaging.gallery_index import Listed


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

    found = asyncio.run(_facts(listed))
    text = make_index(found, folder=output.parent)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        draft = output.with_name(f".{output.name}.part")
        draft.write_text(text, encoding="utf-8")
        draft.replace(output)
    except OSError as error:
        raise PathNotUsable(f"{output} cannot be written: {error.strerror}; --output names another place") from error
    say(f"Wrote {output} with {len(found)} images.")


async def _facts(listed: tuple[str, ...]) -> "list[Listed]":
    from corral.base.clock import SystemClock
    from corral.imaging.gallery_index import Listed
    from corral.imaging.image_facts import image_facts

    config, clock, found = images(), SystemClock(), []
    for one in listed:
        capability, image = _split(one)
        facts = await image_facts(image, config=config, clock=clock)
        found.append(Listed(facts=facts, capability=capability))
    return found


def _split(one: str) -> tuple[str, str]:
    """A capability has neither a slash nor a colon, so a path with an = in it is still a path."""
    capability, equals, image = one.partition("=")
    is_stated = equals and capability and not any(sign in capability for sign in "/:.")
    return (capability, image) if is_stated else ("", one)
