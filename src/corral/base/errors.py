"""The tree of errors: what went wrong as a class with fields, and what can be done about it."""

from collections.abc import Iterator
from typing import ClassVar, TypeVar


class CorralError(Exception):
    """An error that has no more specific type."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str | None = None, /, **fields: object) -> None:
        self.fields = fields
        self._message = message
        super().__init__(message, fields)

    @property
    def message(self) -> str:
        """The error as one sentence for people."""
        if self._message is not None:
            return self._message
        summary = (type(self).__doc__ or "").strip().splitlines()[0].rstrip(".")
        details = ", ".join(f"{name}={value}" for name, value in self.fields.items())
        return f"{summary}: {details}" if details else summary

    def __str__(self) -> str:
        return self.message


class InvalidInput(CorralError):
    """What was given cannot be used."""

    code = "invalid_input"

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"{field}: {problem}" if field else problem, field=field)


class SettingInvalid(InvalidInput):
    """A setting cannot be used."""

    code = "setting_invalid"


class NotFound(CorralError):
    """There is no such thing."""

    code = "not_found"


class Conflict(CorralError):
    """The thing is not in a state that allows this."""

    code = "conflict"


class Overtaken(CorralError):
    """Something else is wanted there by now."""

    code = "overtaken"


class AccessDenied(CorralError):
    """This key may not do that."""

    code = "access_denied"


class SecretsKeyMismatch(CorralError):
    """The secrets key does not fit this database."""

    code = "secrets_key_mismatch"


class DatabaseUnavailable(CorralError):
    """The database did not answer."""

    code = "database_unavailable"
    retryable = True


class DatabaseFull(DatabaseUnavailable):
    """The database has no room to write."""

    code = "database_full"


class DatabaseDamaged(DatabaseUnavailable):
    """The database is damaged."""

    code = "database_damaged"
    retryable = False


class FleetMismatch(CorralError):
    """The data directory and the database do not belong together."""

    code = "fleet_mismatch"


class DatabaseInUse(CorralError):
    """Another frontend already uses this SQLite file."""

    code = "database_in_use"


class SchemaTooNew(CorralError):
    """The database was written by a newer version of Corral."""

    code = "schema_too_new"


class BusUnavailable(CorralError):
    """NATS is not connected."""

    code = "bus_unavailable"
    retryable = True


class NoResponders(BusUnavailable):
    """Nobody listens on the subject."""

    code = "no_responders"


class BusTimeout(BusUnavailable):
    """No answer came before the deadline; the other side may still be working."""

    code = "bus_timeout"


class BusPermissionDenied(CorralError):
    """The NATS user may not use this subject."""

    code = "bus_permission_denied"


class MessageTooLarge(CorralError):
    """The message is larger than the NATS server takes."""

    code = "message_too_large"


class PeerUnavailable(CorralError):
    """The other side did not answer."""

    code = "peer_unavailable"
    retryable = True


class PeerRefused(CorralError):
    """The other side refused."""

    code = "peer_refused"

    def __init__(self, message: str, *, status: int) -> None:
        self.status = status
        super().__init__(message, status=status)


class DataInUse(CorralError):
    """Another process uses this data directory."""

    code = "data_in_use"


class AddressInUse(CorralError):
    """The address is taken by another program."""

    code = "address_in_use"


class PathNotUsable(CorralError):
    """The path cannot be used."""

    code = "path_not_usable"


class ChildFailed(CorralError):
    """A process that we started did not become ready."""

    code = "child_failed"


ErrorT = TypeVar("ErrorT", bound=CorralError)


def error_with_code(root: type[ErrorT], code: str, message: str) -> ErrorT:
    """Rebuild an error that another process reported, from the classes below `root`; `root` itself for an unknown
    code."""
    return next((kind for kind in _tree(root) if kind.code == code), root)(message)


def _tree(kind: type[ErrorT]) -> Iterator[type[ErrorT]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _tree(narrower)
