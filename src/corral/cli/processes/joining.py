"""`corral worker --join`: the URL and the code of an invitation, and the fleet that an earlier start joined."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from corral.base.errors import Conflict, InvalidInput, NotFound
from corral.base.private_files import read_private
from corral.base.setting_kinds import HTTP_URLS
from corral.base.words import printable
from corral.processes.exit_codes import ExitCode
from corral.wire.joining import read_code, read_join_url

if TYPE_CHECKING:
    from corral.worker.config import WorkerConfig


def joining(
    settings: "WorkerConfig", url: str, *, code_file: Path | None, code_descriptor: int | None
) -> "WorkerConfig":
    """Return the settings of a worker that joins, or comes back to the fleet that it joined.

    Settings that name a frontend (`register_to`) count for where it is; the fleet stays the one that was joined.
    """
    from corral.worker.membership.identity import NodeIdentity

    frontend = settings.frontend
    joined = NodeIdentity(settings.data_path).joined_fleet()
    code = _given_code(code_file, code_descriptor) or frontend.join_code
    if not url:
        if joined is None:
            return settings
        urls = frontend.urls or joined.urls
        frontend_config = replace(
            frontend, urls=urls, fleet_pin=frontend.fleet_pin or joined.pin, is_joining=True, join_code=code
        )
        return replace(settings, frontend=frontend_config)
    urls, pin = _read_url(url)
    pin = pin or frontend.fleet_pin
    if joined is not None:
        if pin not in ("", joined.pin):
            raise Conflict(
                f"this machine is in another fleet (#{joined.pin}, {', '.join(joined.urls)}); to join #{pin}, delete"
                f" node-secret, node.json and joined.json in {settings.data_path} first, or give it another --data"
            )
        pin = joined.pin
        if not code and sys.stdin.isatty():  # the fleet may have removed this machine
            code = _ask_for_code(or_none=True)
    elif not code:
        code = _ask_for_code()
    return replace(settings, frontend=replace(frontend, urls=urls, fleet_pin=pin, is_joining=True, join_code=code))


def run_checks(config: "WorkerConfig") -> ExitCode:
    """Print what would work here and what would not; FAILED if anything would not."""
    import asyncio

    from corral.processes.worker_check import check_worker
    from corral.worker.membership.join_check import Verdict

    colours = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILED: "red"}
    findings = asyncio.run(check_worker(config))
    for finding in findings:
        verdict = click.style(f"{finding.verdict.value:<8}", fg=colours[finding.verdict])
        click.echo(f"{verdict} {finding.subject + ':':<10} {printable(finding.sentence)}")
    return ExitCode.FAILED if any(finding.verdict is Verdict.FAILED for finding in findings) else ExitCode.OK


def _read_url(text: str) -> tuple[tuple[str, ...], str]:
    url, pin = read_join_url(text)
    try:
        return tuple(HTTP_URLS.read(url)), pin
    except ValueError:
        raise InvalidInput("--join", f"{url[:100]!r} cannot be used; allowed is {HTTP_URLS.allowed}") from None


def _given_code(file: Path | None, descriptor: int | None) -> str:
    from corral.base.processes import secret_from

    if file is not None:
        data = read_private(file)
        if data is None:
            raise NotFound(f"there is no file {file} with a join code")
        return read_code(data.decode("ascii", errors="replace"))
    if descriptor is None:
        return ""
    try:
        return read_code(secret_from(descriptor))
    except (OSError, UnicodeDecodeError):
        raise InvalidInput("--code-descriptor", f"{descriptor} cannot be read") from None


def _ask_for_code(*, or_none: bool = False) -> str:
    """Ask a person, until what was typed can be a code; a member of the fleet may also have none."""
    if not sys.stdin.isatty():
        raise InvalidInput(
            "--join",
            "needs a join code: give --code-file or --code-descriptor, set CORRAL_JOIN_CODE, or run it in a terminal",
        )
    question = "Join code (Enter: come back as the node that this machine was)" if or_none else "Join code"
    while True:
        typed = click.prompt(question, err=True, default="", show_default=False)
        if or_none and not typed.strip():
            return ""
        try:
            return read_code(typed)
        except InvalidInput as error:
            click.echo(error.message, err=True)
