"""`corral backend build`: makes an image of a backend's directory."""

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from corral.cli.authoring.publish import push_image, pushed_sentence, registry_options
from corral.cli.options import CorralCommand, command_sources
from corral.cli.output import json_option, print_json, say
from corral.processes.configs import shipped_installers

if TYPE_CHECKING:
    from corral.cli.authoring.build_options import BuildOptions
    from corral.imaging.build import BuildOrder, BuiltBackend
    from corral.oci.references import Reference

_FILE: Final = click.Path(path_type=Path)
_FOLDER: Final = click.Path(path_type=Path, file_okay=False)


@click.command(cls=CorralCommand)
@click.argument("directory", metavar="DIR", type=_FILE)
@click.option("-o", "--output", type=_FILE, help="Write the image to this directory, as an OCI layout.")
@click.option("--archive", type=_FILE, help="Write the image to this file, as an OCI archive.")
@click.option("--push", metavar="REFERENCE", default="", help="Push the image to a registry.")
@click.option(
    "--mount-from", metavar="REPOSITORY", default="", help="Repository of the same registry to take layers from."
)
@click.option(
    "--platform",
    "platforms",
    metavar="OS/ARCH",
    multiple=True,
    help="Build for linux/amd64, linux/arm64, darwin/arm64 or darwin/amd64; several make a list of images.  "
    "[default: this machine]",
)
@click.option(
    "--python",
    "pythons",
    metavar="[OS/ARCH=]PATH",
    multiple=True,
    help="Put this interpreter in: the folder of a relocatable Python. Without one the machine needs its own.",
)
@click.option(
    "--python-version",
    "python_versions",
    metavar="VERSION",
    multiple=True,
    help="Put in packages for this Python where no interpreter goes in; several are possible.  "
    "[default: the one that runs Corral]",
)
@click.option(
    "--library", "libraries", metavar="[OS/ARCH=]PATH", multiple=True, help="Put this native library into lib."
)
@click.option("--glibc", metavar="VERSION", help="Take no wheels that need a newer glibc than this.  [default: 2.28]")
@click.option("--wheels", type=_FOLDER, help="Take packages from this folder of wheels, and ask nobody else.")
@click.option(
    "--installer", type=_FILE, help="Get packages with this uv or pip.  [default: uv, or pip where there is none]"
)
@click.option("--sdk", type=_FOLDER, help="Take the SDK from this folder.  [default: DIR/sdk, or DIR/../sdk]")
@click.option(
    "--compression",
    type=click.Choice(["gzip", "zstd", "none"]),
    default="gzip",
    show_default=True,
    help="How to compress layers.",
)
@click.option("--level", type=int, help="How hard to compress.  [default: gzip 6, zstd 9]")
@click.option("--annotation", "annotations", metavar="KEY=VALUE", multiple=True, help="Annotate the image.")
@click.option(
    "--created",
    metavar="TIME",
    default="",
    help="When the image was made, as 2026-01-31T12:00:00Z.  [default: the same for all]",
)
@json_option
@registry_options
def build(directory: Path, as_json: bool, **values: Any) -> None:
    """Make an image of the backend in DIR.

    The image holds the backend's files, the SDK, the Python packages of its requirements.txt and, if you give one, an
    interpreter: it needs no network where it runs. The same input gives the same digest. It can be written as an OCI
    layout or an archive, or pushed, or all of it.
    """
    from corral.cli.authoring.build_options import BuildOptions

    options = BuildOptions(**values)
    order = options.order(directory, command_sources().environment)
    reference = options.reference()  # refuse a wrong one before anything is built
    made = asyncio.run(_build(order, options, reference, is_verbose=not as_json))
    if not as_json:
        return
    images = [
        {
            "platform": str(image.platform),
            "digest": image.digest,
            "layers": [
                {
                    "title": layer.title,
                    "digest": layer.written.descriptor.digest,
                    "size": layer.written.descriptor.size,
                    "unpacked": layer.written.unpacked_bytes,
                    "entries": layer.written.entries,
                }
                for layer in image.layers
            ],
        }
        for image in made.images
    ]
    name, version = made.description.name, made.description.version
    print_json({"name": name, "version": version, "digest": made.digest, "size": made.size, "images": images})


async def _build(
    order: "BuildOrder", options: "BuildOptions", reference: "Reference | None", *, is_verbose: bool
) -> "BuiltBackend":
    """Build the layout, then write the archive and push. Without --output the layout is temporary."""
    import tempfile

    from corral.base.tasks import in_thread
    from corral.imaging.build import build as make
    from corral.imaging.layouts import write_archive
    from corral.imaging.packages import find_installer

    path = order.environment.get("PATH", "")
    installer = partial(find_installer, options.installer, shipped_installers(), path)
    if options.installer is not None:
        installer()  # refuse a wrong one before anything is built
    with tempfile.TemporaryDirectory(prefix="corral-build-") as scratch:
        layout = options.output or Path(scratch) / "layout"
        made = await make(order, layout, installer)
        if is_verbose:
            _print_built(made)
        archive = options.archive
        if archive is not None:
            await in_thread(lambda: write_archive(layout, archive))
        if reference is not None:
            result = await push_image(layout, reference, mount_from=options.mount_from)
            if is_verbose:
                say(pushed_sentence(result))
    return made


def _print_built(made: "BuiltBackend") -> None:
    from corral.base.words import format_size

    version = f" {made.description.version}" if made.description.version else ""
    say(f"Built {made.description.name}{version}, {format_size(made.size)}.")
    for image in made.images:
        say(f"  {image.platform}  {image.digest}")
        for layer in image.layers:
            written = layer.written
            say(f"    {format_size(written.descriptor.size):>9}  {layer.title}, {written.entries} entries")
    say(made.digest)
