"""What a request would install, found out before anybody waits for it: where it comes from, and which directories it
touches.
"""

from dataclasses import dataclass, replace
from typing import Self

from corral.base.errors import CorralError, InvalidInput
from corral.wire.backends import Gallery, InstallRequest, UpgradeRequest
from corral.worker.installing.installer import Installer
from corral.worker.installing.orders import CannotInstall, InstallableBackend, InstallOrder


class GalleriesUnreadable(CorralError):
    """The request's galleries cannot be read."""

    code = "galleries_unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallPlan:
    """A source that was found, or the reason why there is none. Neither means that nobody has looked."""

    found: InstallableBackend | None = None
    problem: CorralError | None = None

    @property
    def is_made(self) -> bool:
        return self.found is not None or self.problem is not None

    @property
    def places(self) -> frozenset[str]:
        """Directories that are touched. What cannot be installed touches nothing."""
        return self.found.places if self.found is not None else frozenset()

    @property
    def key(self) -> str:
        """What the backend is called on the disk, if that is another name than the one that was asked for."""
        return self.found.key if self.found is not None else ""

    def met(self) -> InstallableBackend:
        """What was found; raises why nothing was."""
        if self.found is None:
            raise self.problem or CannotInstall()
        return self.found

    @classmethod
    async def made(cls, installer: Installer, request: InstallRequest | UpgradeRequest) -> Self:
        """Look for a source, asking galleries if needed. Never raises: the error is reported when the plan is used."""
        try:
            return cls(found=await installer.find(order_of(request)))
        except CorralError as error:
            return cls(problem=error)


UNMADE = InstallPlan()


def order_of(request: InstallRequest | UpgradeRequest) -> InstallOrder:
    order = InstallOrder(backend=request.backend, uri=request.uri, name=request.name, alias=request.alias)
    replaces = isinstance(request, UpgradeRequest) or request.force
    return replace(order, galleries=check_galleries(request), wants_newest=replaces)


def check_galleries(request: InstallRequest | UpgradeRequest) -> list[Gallery] | None:
    """A text that cannot be read is said even when no gallery turns out to be needed."""
    try:
        return request.galleries()
    except InvalidInput as error:
        raise GalleriesUnreadable(f"decoding backend galleries: {error.problem}") from error
