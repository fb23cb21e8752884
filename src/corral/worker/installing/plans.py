"""Determines what a request would install, before taking locks: the source, and the directories it changes."""

from dataclasses import dataclass
from typing import Self

from corral.base.errors import CorralError, InvalidInput
from corral.wire.backends import InstallRequest, UpgradeRequest, read_galleries
from corral.worker.installing.installer import Installer
from corral.worker.installing.orders import CannotInstall, InstallableBackend, InstallOrder


class GalleriesUnreadable(CorralError):
    """The request's galleries cannot be read."""

    code = "galleries_unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallPlan:
    """A source, or the reason why there is none. Without either nothing has been looked up."""

    backend: InstallableBackend | None = None
    problem: CorralError | None = None

    @property
    def is_made(self) -> bool:
        return self.backend is not None or self.problem is not None

    @property
    def places(self) -> frozenset[str]:
        """Directories that the install changes; empty if it cannot be installed."""
        return self.backend.places if self.backend is not None else frozenset()

    @property
    def key(self) -> str:
        """The backend's name on disk, if it differs from the requested one."""
        return self.backend.key if self.backend is not None else ""

    def met(self) -> InstallableBackend:
        """Return the backend, or raise why there is none."""
        if self.backend is None:
            raise self.problem or CannotInstall()
        return self.backend

    @classmethod
    async def made(cls, installer: Installer, request: InstallRequest | UpgradeRequest) -> Self:
        """Look for a source, asking galleries if needed. Never raises: the error is reported when the plan is used."""
        try:
            return cls(backend=await installer.find(order_of(request)))
        except CorralError as error:
            return cls(problem=error)


UNMADE = InstallPlan()


def order_of(request: InstallRequest | UpgradeRequest) -> InstallOrder:
    check_galleries(request)
    return InstallOrder(
        backend=request.backend,
        galleries=request.backend_galleries,
        uri=request.uri,
        name=request.name,
        alias=request.alias,
        wants_newest=isinstance(request, UpgradeRequest) or request.force,
    )


def check_galleries(request: InstallRequest | UpgradeRequest) -> None:
    """Refuse galleries that cannot be read, even if no gallery is needed."""
    try:
        read_galleries(request.backend_galleries)
    except InvalidInput as error:
        raise GalleriesUnreadable(f"decoding backend galleries: {error.problem}") from error
