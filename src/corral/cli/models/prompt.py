"""`corral models prompt`: what a model's templates make of requests. Needs no fleet, and no model but its file."""

import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

import click

from corral.base.errors import InvalidInput
from corral.cli.options import CorralCommand, warn

log = logging.getLogger(__name__)

_LONGEST_LINE: Final = 64 * 1024 * 1024
"""Bytes of one request: pictures are in it."""
_LARGEST_FILE: Final = 4 * 1024 * 1024
_MISREAD: Final = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that JSON may hold, but some reader takes for the end of a line, a terminal for an order, or UTF-8 does
not have."""


@click.command("prompt", cls=CorralCommand)
@click.argument("config", metavar="CONFIG.yaml")
def prompt(config: str) -> None:
    """Show the prompts that a model's templates make of requests.

    CONFIG.yaml is a model's file, or a base definition of a gallery. It needs no name, backend or files. Standard input
    has one JSON document per line, and each is answered by one line, in order:

    \b
    {"messages": [...]}, {"prompt": "..."}, {"instruction": "...", "input": "..."}
      a request to chat, completions or edits; pictures are not fetched
    {"endpoint": "chat|completion|edit", "request": {...}, "config": {...}}
      the same, with a configuration (if given) laid over that of the file
    {"template": "chat|chat_message|function|completion|edit|multimodal", "data": {"Input": "..."}}
      one template alone, with Go's names of the fields

    \b
    {"prompt": "..."}                  what the backend would be given
    {"use_tokenizer_template": true}   the backend renders the messages itself
    {"error": "..."}                   the line or a template cannot be used
    """
    model_config = read_config(Path(config))
    if sys.stderr.isatty():
        warn(_problems(model_config))
    if sys.stdin.isatty():
        click.echo("One request per line, as JSON; Ctrl-D ends.", err=True)
    for line in _lines(sys.stdin.buffer):
        sys.stdout.buffer.write(_one_line(_answer(model_config, line)))
        sys.stdout.buffer.flush()


def _problems(config: Mapping[str, object]) -> list[str]:
    """What would be said if a model with this configuration were added, as far as prompts are concerned."""
    from corral.templates import advice, refusals

    return [*map(str, refusals(config)), *(each.sentence for each in advice(config))]


def _lines(source: BinaryIO) -> Iterator[bytes | None]:
    """Yield the lines; None for one that is too long."""
    while line := source.readline(_LONGEST_LINE + 1):
        if len(line) <= _LONGEST_LINE or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = source.readline(_LONGEST_LINE)
        yield None


def _answer(config: Mapping[str, object], line: bytes | None) -> Mapping[str, object]:
    """Answer one line. Every line gets an answer, so a thousand lines give a thousand answers."""
    from corral.templates import prompt_line

    if line is None:
        return {"error": f"the line is longer than {_LONGEST_LINE // 2**20} MB"}
    try:
        return prompt_line(config, line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return {"error": f"not UTF-8 text: see byte {error.start}"}
    except Exception as error:
        log.exception("a fault in Corral itself", extra={"event": "prompt.fault"})
        return {"error": f"a fault in Corral itself: {error!r}"}


def _one_line(answer: Mapping[str, object]) -> bytes:
    text = json.dumps(answer, ensure_ascii=False)
    return _MISREAD.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode() + b"\n"


def read_config(path: Path) -> Mapping[str, object]:
    """Read what a file says about one model. InvalidInput names the file, and the line where there is one."""
    from corral.base.careful_yaml import UNREADABLE, why
    from corral.base.yaml_values import read_document
    from corral.galleries.model_entries import DEFINITION_LIMITS, merged
    from corral.galleries.model_key_checks import with_plain_switches

    content = _content(path)
    try:
        document = read_document(content.decode("utf-8-sig"), DEFINITION_LIMITS)
    except UnicodeDecodeError as error:
        raise InvalidInput(str(path), f"is not UTF-8 text: see byte {error.start}") from None
    except UNREADABLE as error:
        raise InvalidInput(str(path), why(error)) from None
    if isinstance(document, list) and len(document) == 1:
        document = document[0]
    if isinstance(document, list):
        raise InvalidInput(str(path), f"holds {len(document)} models; write the one to try into a file of its own")
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise InvalidInput(str(path), "must be a mapping of keys to values, as a model's file is")
    if "config_file" in document:
        return _definition(path, content)
    return with_plain_switches(merged(document, {}))


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be read: {error.strerror}") from None
    if len(content) > _LARGEST_FILE:
        raise InvalidInput(str(path), f"is larger than {_LARGEST_FILE // 2**20} MB: this is no model's configuration")
    return content


def _definition(path: Path, content: bytes) -> Mapping[str, object]:
    """Read a base definition of a gallery, whose configuration is a text inside of it."""
    from corral.galleries.model_entries import GalleryModel, plan_model, read_definition

    try:
        return plan_model(GalleryModel(name="model", url=str(path)), read_definition(content)).config
    except InvalidInput as error:
        raise InvalidInput(str(path), error.message) from None
