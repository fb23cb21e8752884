"""`corral models add`, `edit` and `export`: configurations as text, from and to files. No typed text is lost."""

import os
import shlex
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import quote

import click

from corral.base.errors import InvalidInput, PathNotUsable, PeerRefused
from corral.cli.client import ApiClient, api_path
from corral.cli.connection import connected, open_client
from corral.cli.models.revisions import current_revision, say_change, show_diff
from corral.cli.names import complete_model
from corral.cli.options import CorralCommand, confirm, print_error
from corral.cli.output import json_option, print_json, print_json_list, say
from corral.processes.exit_codes import ExitCode
from corral.wire.model_changes import ModelChange, ModelRevisionView
from corral.wire.models import ModelList

_LARGEST: Final = 4 * 1024 * 1024
"""Bytes of a configuration; the frontend takes no larger ones."""


@click.command(cls=CorralCommand)
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--dry-run", is_flag=True, help="Only say what the frontend thinks of it.")
@json_option
@connected
def add(file: str, dry_run: bool, as_json: bool) -> None:
    """Add a model by its YAML, from FILE or a pipe (`-`).

    Its weights are not sent: they must be in the models directory already, or be named by a URL. A model of this name
    that is there already is not replaced: see `corral models edit`.
    """
    change = open_client().post("/api/v1/models", ModelChange, {"config": read_text(file), "dry_run": dry_run})
    if as_json:
        print_json(change)
    else:
        say_change(change, f"{change.name}: {'can be added' if dry_run else 'added'}.")


def read_text(file: str) -> str:
    """The text of a file, or of standard input for `-`. InvalidInput when it is no text or too long."""
    name = "standard input" if file == "-" else file
    try:
        with nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as source:
            content = source.read(_LARGEST + 1)
    except OSError as error:
        raise InvalidInput("FILE", f"{file} cannot be read: {error.strerror}") from error
    if len(content) > _LARGEST:
        raise InvalidInput("FILE", f"{name} is larger than {_LARGEST} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput("FILE", f"{name} is no UTF-8 text: {error.reason} at byte {error.start}") from error


@click.command(cls=CorralCommand)
@click.argument("model", shell_complete=complete_model)
@click.option("--file", metavar="FILE", default="", help="Take the new text from this file, or from a pipe with `-`.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@connected
def edit(model: str, file: str, yes: bool, as_json: bool) -> int:
    """Change the configuration of a model in $VISUAL or $EDITOR.

    The frontend checks the text; then you see what changes and which replicas are loaded again, and are asked. A text
    that is refused can be edited again. Whatever happens, a text that was not stored is kept in a file that is named.
    """
    client = open_client()
    current = current_revision(client, model)
    draft = Draft(client, model, current)
    if not file and not sys.stdin.isatty():
        raise InvalidInput("--file", "is needed here, because there is no terminal for an editor")
    text, checked = draft.given(file) if file else draft.edited()
    if checked is None:
        click.echo("Nothing was changed.", err=as_json)
        return ExitCode.OK
    if not as_json:
        show_diff(current.text, text, f"{model} {current.number}", f"{model} (new)")
        say_change(checked, "")
    if not yes:
        draft.ask()
    change = draft.store(text)
    if as_json:
        print_json(change)
    else:
        undo = shlex.join(["corral", "models", "rollback", model, str(current.number)])
        say(f"{model}: stored as change {change.number}. To undo it: {undo}")
    return ExitCode.OK


class Draft:
    """A text that a person edits. It is kept in a file until it is stored."""

    def __init__(self, client: ApiClient, model: str, current: ModelRevisionView) -> None:
        self._client = client
        self._model = model
        self._current = current
        self._path: Path | None = None

    def given(self, file: str) -> tuple[str, ModelChange | None]:
        """The text of a file, and what the frontend would make of it; None when it is what the model is already."""
        text = read_text(file)
        return text, self._checked(text)

    def edited(self) -> tuple[str, ModelChange | None]:
        """The text after the editor, and what the frontend would make of it; None when nothing was changed.

        A text that is refused can be edited again.
        """
        handle, name = tempfile.mkstemp(prefix="corral-", suffix=".yaml")
        self._path = Path(name)
        with open(handle, "w", encoding="utf-8", newline="") as draft:
            draft.write(self._current.text)
        while True:
            try:
                _open_editor(name)
                text = read_text(name)
                checked = self._checked(text)
            except (PeerRefused, InvalidInput, click.ClickException) as error:
                print_error(error.message)
                if not click.confirm("Edit it again?", default=True, err=True):
                    self._give_up()
            except BaseException:  # the frontend is away, there is no editor, or Ctrl-C
                self._say_kept()
                raise
            else:
                if checked is None:
                    self._path.unlink()
                return text, checked

    def _checked(self, text: str) -> ModelChange | None:
        return None if text == self._current.text else self._put(text, dry_run=True)

    def ask(self) -> None:
        """Ask whether to store the text; the command ends when the answer is no."""
        try:
            confirm("Store this?")
        except click.exceptions.Exit:
            self._say_kept()
            raise

    def store(self, text: str) -> ModelChange:
        """Store the text. PeerRefused names who changed the model in the meantime."""
        try:
            change = self._put(text, dry_run=False)
        except BaseException:
            self._say_kept()
            raise
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        return change

    def _put(self, text: str, *, dry_run: bool) -> ModelChange:
        body = {"config": text, "if_revision": self._current.revision, "dry_run": dry_run}
        return self._client.put(api_path("models", self._model), ModelChange, body)

    def _give_up(self) -> NoReturn:
        click.echo("Nothing was changed.", err=True)
        self._say_kept()
        raise click.exceptions.Exit(ExitCode.FAILED)

    def _say_kept(self) -> None:
        if self._path is not None:
            again = shlex.join(["corral", "models", "edit", self._model, "--file", str(self._path)])
            click.echo(f"Your text is in {self._path}; go on with: {again}", err=True)


def _open_editor(file: str) -> None:
    """Let a person edit the file. PathNotUsable when the editor cannot be started: asking again would not help."""
    try:
        click.edit(filename=file)
    except click.ClickException as error:
        if not isinstance(error.__cause__, OSError):
            raise
        editor = error.message.partition(":")[0]
        raise PathNotUsable(
            f"{editor} cannot be started: {error.__cause__.strerror}; name an editor in $EDITOR"
        ) from error


@click.command(cls=CorralCommand)
@click.argument("model", required=False, shell_complete=complete_model)
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@click.option("--all", "every", is_flag=True, help="Export all models, each into a file of its own.")
@click.option("--force", is_flag=True, help="Overwrite files that say something else.")
@json_option
@connected
def export(model: str | None, directory: Path | None, every: bool, force: bool, as_json: bool) -> None:
    """Print the YAML of a model exactly as it is stored.

    With a DIRECTORY it is written there as NAME.yaml. `corral models export --all DIRECTORY` writes all of them;
    without a directory, into the current one.
    """
    if directory is not None if every else model is None:
        raise click.UsageError("name one MODEL, or give --all and at most a directory")
    client = open_client()
    if every:
        directory = Path(model or ".")
        names = [view.name for view in client.get("/api/v1/models", ModelList).items]
    else:
        names = [str(model)]
    texts = {name: current_revision(client, name).text for name in names}
    if directory is not None:
        files = {name: directory / f"{quote(name, safe=' ')}.yaml" for name in names}
        for name, text in texts.items():
            _write(files[name], text, force=force)
    if as_json:
        places = {} if directory is None else files
        print_json_list(
            [{"name": name, "text": text, "file": str(places.get(name, ""))} for name, text in texts.items()]
        )
    elif directory is None:
        click.echo("".join(texts.values()), nl=False)
    else:
        say(f"Wrote {len(names)} {'file' if len(names) == 1 else 'files'} into {directory}.")


def _write(file: Path, text: str, *, force: bool) -> None:
    """Write the text as it is. PathNotUsable when the file says something else, or cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        content = text.encode()
        if file.exists() and not force and file.read_bytes() != content:
            raise PathNotUsable(f"{file} is there already, and says something else; --force overwrites it")
        draft = file.with_name(f".{os.getpid()}.part")
        draft.write_bytes(content)
        draft.replace(file)
    except OSError as error:
        raise PathNotUsable(f"cannot write {file}: {error.strerror}") from error
