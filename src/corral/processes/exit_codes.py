"""Exit codes of every Corral process, for scripts and supervisors.

`sole_cause` finds the error that ended a process inside the groups of task groups.

The numbers follow `sysexits.h`. A code in `NOT_WORTH_A_RESTART` means that every further start would fail in the
same way until a person changes something.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from corral.base import errors
from corral.base.errors import CorralError
from corral.oci import errors as images


class ExitCode(IntEnum):
    """See `MEANINGS`, which the reference is generated from."""

    OK = 0
    FAILED = 1
    STILL_RUNNING = 2
    USAGE = 64
    UNAVAILABLE = 69
    INTERNAL = 70
    CANNOT_CREATE = 73
    IN_USE = 75
    DENIED = 77
    MISCONFIGURED = 78
    INTERRUPTED = 130


MEANINGS: Final[Mapping[ExitCode, str]] = {
    ExitCode.OK: "done, or stopped as asked",
    ExitCode.FAILED: "the command could not do it: no such node, a state that forbids it, an operation that failed on "
    "some node, `doctor` found a problem, `gallery check` refuses an entry",
    ExitCode.STILL_RUNNING: "an operation goes on, and the command stopped watching: its time (`--within`) was over, "
    "or Ctrl-C",
    ExitCode.USAGE: "an unknown command or flag, a setting that cannot be used, an unknown key in the file",
    ExitCode.UNAVAILABLE: "the frontend, the database, NATS or a registry of images did not answer",
    ExitCode.INTERNAL: "a fault in Corral itself; a traceback went to standard error",
    ExitCode.CANNOT_CREATE: "a file or directory cannot be created or written: permissions, or the disk is full",
    ExitCode.IN_USE: "a port, a data directory or a SQLite file is in use by another process",
    ExitCode.DENIED: "the key, the registration token or a login is missing, wrong, expired, or may not do this",
    ExitCode.MISCONFIGURED: "the stored state does not fit: another secrets key, a database that is damaged, empty "
    "or another fleet's, or one of a newer version",
    ExitCode.INTERRUPTED: "interrupted from the keyboard",
}

NOT_WORTH_A_RESTART: Final = frozenset(
    {ExitCode.USAGE, ExitCode.CANNOT_CREATE, ExitCode.IN_USE, ExitCode.DENIED, ExitCode.MISCONFIGURED}
)
"""Applies to a process that was not ready yet; one that was is restarted whatever ended it."""

_BY_ERROR: Final[tuple[tuple[type[errors.CorralError], ExitCode], ...]] = (
    (errors.InvalidInput, ExitCode.USAGE),
    (errors.PathNotUsable, ExitCode.CANNOT_CREATE),
    (errors.DataInUse, ExitCode.IN_USE),
    (errors.DatabaseInUse, ExitCode.IN_USE),
    (errors.AddressInUse, ExitCode.IN_USE),
    (errors.AccessDenied, ExitCode.DENIED),
    (errors.BusPermissionDenied, ExitCode.DENIED),
    (errors.SecretsKeyMismatch, ExitCode.MISCONFIGURED),
    (errors.SchemaTooNew, ExitCode.MISCONFIGURED),
    (errors.FleetMismatch, ExitCode.MISCONFIGURED),
    (errors.DatabaseDamaged, ExitCode.MISCONFIGURED),
    (errors.DatabaseUnavailable, ExitCode.UNAVAILABLE),
    (errors.BusUnavailable, ExitCode.UNAVAILABLE),
    (errors.PeerUnavailable, ExitCode.UNAVAILABLE),
    (errors.ChildFailed, ExitCode.UNAVAILABLE),
    (images.RegistryUnavailable, ExitCode.UNAVAILABLE),
    (images.RegistryRefused, ExitCode.DENIED),
    (images.SourceInvalid, ExitCode.USAGE),
)


def exit_code_of(error: errors.CorralError) -> ExitCode:
    """Return the exit code for an error that ends a process."""
    if isinstance(error, errors.PeerRefused) and error.status in (401, 403):
        return ExitCode.DENIED
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), ExitCode.FAILED)


def sole_cause(group: BaseExceptionGroup[BaseException]) -> CorralError:
    """Return the error of ours that ended a service; the first of several. Raise any other error unchanged."""
    expected, unexpected = group.split(CorralError)
    if expected is None or unexpected is not None:
        raise group
    cause: CorralError | BaseExceptionGroup[CorralError] = expected
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return cause
