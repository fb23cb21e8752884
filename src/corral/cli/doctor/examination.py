"""What all diagnostics look at, gathered once before the first of them runs."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from corral.base.errors import AccessDenied, CorralError
from corral.cli.client import ApiClient, FrontendTarget
from corral.cli.connection import target_of
from corral.processes.settings import ClientSettings
from corral.processes.up_file import UpFile, read_up_file
from corral.wire.nodes import DoctorReport, Finding, VersionView

OK: Final = "ok"
WARNING: Final = "warning"
PROBLEM: Final = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendWords:
    """What the frontend answered, or why it did not."""

    target: FrontendTarget | None = None
    trouble: CorralError | None = None
    """Why it did not answer: no frontend is known, nothing listens there, or the key was refused."""
    report: DoctorReport | None = None
    version: VersionView | None = None
    clock_ahead_seconds: float | None = None
    """How far its clock is ahead of ours, to about a second; None when it did not say."""

    @property
    def is_there(self) -> bool:
        """Whether something answered, even if it was a refusal."""
        return self.report is not None or isinstance(self.trouble, AccessDenied)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What is known about this machine and its frontend."""

    settings: ClientSettings
    up: UpFile | None
    frontend: FrontendWords


def examine(settings: ClientSettings) -> Examination:
    try:
        up = read_up_file(settings.data)
    except CorralError:  # the diagnostic of the data directory says why
        up = None
    return Examination(settings=settings, up=up, frontend=_ask_frontend(settings))


def _ask_frontend(settings: ClientSettings) -> FrontendWords:
    try:
        target = target_of(settings)
    except CorralError as error:
        return FrontendWords(trouble=error)
    client = ApiClient(target)
    try:
        report = client.get("/api/v1/doctor", DoctorReport)
        version = client.get("/api/v1/version", VersionView)
    except CorralError as error:
        return FrontendWords(target=target, trouble=error, clock_ahead_seconds=_clock_ahead(client))
    return FrontendWords(target=target, report=report, version=version, clock_ahead_seconds=_clock_ahead(client))


def _clock_ahead(client: ApiClient) -> float | None:
    if client.server_time is None or client.server_time.tzinfo is None:
        return None
    return (client.server_time - datetime.now(UTC)).total_seconds()


def finding(check: str, level: str, summary: str, remedy: str = "") -> Finding:
    return Finding(check=check, level=level, summary=summary, remedy=remedy)
