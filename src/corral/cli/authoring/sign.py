"""`corral backend keygen` and `corral backend sign`: makes keys for signing, and signs images with them."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from corral.base.errors import Conflict, InvalidInput
from corral.cli.authoring.publish import images
from corral.cli.options import CorralCommand, command_sources, settings_options
from corral.cli.output import Column, json_option, plain, print_json, show, table
from corral.processes.settings import SigningSettings
from corral.processes.settings_sources import resolve

if TYPE_CHECKING:
    from corral.imaging.signing import SignedDigest

F = TypeVar("F", bound=Callable[..., Any])
_SETTINGS: Final = frozenset({"registry_auth_file", "plain_registries"})
_LARGEST_KEY: Final = 64 * 1024


def password_options(function: F) -> F:
    """Adds --password-file and --no-password. A password is never a flag, because other users could read it."""
    function = click.option(
        "--password-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="File whose first line is the password of the private key.  [else: CORRAL_SIGNING_PASSWORD]",
    )(function)
    return click.option("--no-password", is_flag=True, help="The private key has no password.")(function)


@click.command("keygen", cls=CorralCommand)
@click.option(
    "--output",
    "prefix",
    type=click.Path(path_type=Path),
    default=Path("corral"),
    show_default=True,
    metavar="NAME",
    help="Writes NAME.key, to be kept secret, and NAME.pub, to be given away.",
)
@password_options
def generate_keys(prefix: Path, password_file: Path | None, no_password: bool) -> None:
    """Make a pair of keys for signing backends.

    Cosign can use both files, as we can use those that cosign makes.
    """
    from corral.base.errors import PathNotUsable
    from corral.base.private_files import write_private
    from corral.imaging.private_keys import new_signing_key

    private, public = prefix.with_name(f"{prefix.name}.key"), prefix.with_name(f"{prefix.name}.pub")
    for file in (private, public):
        if file.exists():
            raise Conflict(f"{file} is there already, and is not replaced: whoever trusts it could trust no one else")
    password = _password(password_file, is_wanted=not no_password, is_new=True)
    key = new_signing_key()
    write_private(private, key.sealed(password))
    try:
        public.write_text(key.public_key.pem)
    except OSError as error:
        raise PathNotUsable(f"cannot write {public}: {error.strerror}") from error
    click.echo(f"Wrote {private} and {public}, the key {key.public_key.fingerprint}.")


@click.command(cls=CorralCommand)
@click.argument("image")
@click.option(
    "--key",
    "key_file",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="The private key, as `corral backend keygen` or cosign wrote it, or any other PEM file.",
)
@click.option(
    "-a",
    "--annotation",
    "annotations",
    multiple=True,
    metavar="NAME=VALUE",
    help="Something that is stated of the image and signed with it; may be given several times.",
)
@password_options
@json_option
@settings_options(images=_SETTINGS)
def sign(
    image: str,
    key_file: Path,
    annotations: Sequence[str],
    password_file: Path | None,
    no_password: bool,
    as_json: bool,
) -> None:
    """Sign IMAGE, and every image in it if it is for several platforms.

    The signatures are pushed beside the image, where cosign keeps them too. What is signed is the content that the
    registry has for IMAGE at this moment.
    """
    import asyncio

    from corral.base.clock import SystemClock
    from corral.imaging.private_keys import is_locked, read_signing_key
    from corral.imaging.signing import sign_image
    from corral.oci.references import parse_reference

    reference = parse_reference(image.removeprefix("oci://"))
    stated = dict(map(_annotation, annotations))
    document = _read(key_file, "--key")
    is_wanted = not no_password and is_locked(document)
    key = read_signing_key(document, _password(password_file, is_wanted=is_wanted, is_new=False))
    signing = sign_image(reference, key, config=images(), clock=SystemClock(), annotations=stated)
    signed = asyncio.run(signing)
    if as_json:
        print_json(signed)
        return
    columns: Sequence[Column[SignedDigest]] = (
        Column(title="Image", cell=lambda signed: plain(signed.digest)),
        Column(title="Signature", cell=lambda signed: "was there" if signed.was_signed else "pushed"),
        Column(title="Place", cell=lambda signed: plain(signed.signature)),
    )
    show(table(columns, signed))
    click.echo(f"Signed with the key {key.public_key.fingerprint}.")


def _annotation(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidInput("--annotation", f"must be NAME=VALUE, got {text[:200]!r}")
    return name, value


def _password(file: Path | None, *, is_wanted: bool, is_new: bool) -> bytes:
    """The password from the file, the environment or the terminal, in this order."""

    if not is_wanted:
        return b""
    if file is not None:
        return _read(file, "--password-file").split(b"\n", 1)[0].rstrip(b"\r")
    if stated := resolve(SigningSettings, command_sources()).password:
        return stated.encode()
    if not sys.stdin.isatty():
        advice = "set CORRAL_SIGNING_PASSWORD, or give --password-file or --no-password"
        raise InvalidInput("--password-file", f"there is nobody to ask for the password of the private key: {advice}")
    answer: str = click.prompt("Password of the private key", hide_input=True, confirmation_prompt=is_new, err=True)
    return answer.encode()


def _read(file: Path, field: str) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(_LARGEST_KEY)
    except OSError as error:
        raise InvalidInput(field, f"{file} cannot be read: {error.strerror}") from error
