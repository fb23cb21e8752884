"""What we want to hear, whichever connection there is."""

from contextlib import suppress
from datetime import timedelta

from corral.base.errors import BusPermissionDenied, BusUnavailable
from corral.bus.link import Link, LinkSubscription, Receive


class Interest:
    """A subscription as the server should have it, on whichever link there is."""

    def __init__(self, subject: str, queue: str, receive: Receive) -> None:
        self.subject = subject
        self._queue = queue
        self._receive = receive
        self.link: Link | None = None
        self.is_refused = False
        """The server of this link said no, though an earlier one had said yes."""
        self._remote: LinkSubscription | None = None

    async def establish(self, link: Link) -> None:
        """Ask once for each link."""
        self.link = link
        self.is_refused = False
        remote = await link.subscribe(self.subject, self._queue, self._receive)
        await self._keep(link, remote)

    async def establish_confirmed(self, link: Link) -> None:
        self.link = link
        remote = await link.subscribe_confirmed(self.subject, self._queue, self._receive)
        self.is_refused = False
        await self._keep(link, remote)

    async def establish_again(self, link: Link) -> None:
        """After a refusal: permissions may have changed since."""
        if self._remote is not None:
            await link.unsubscribe(self._remote)
        with suppress(BusPermissionDenied):
            await self.establish_confirmed(link)

    async def _keep(self, link: Link, remote: LinkSubscription) -> None:
        if self.link is link:
            self._remote = remote
        else:  # given up, or taken over by a newer link, while we waited
            await link.unsubscribe(remote)

    async def give_up(self) -> None:
        """Returns when the server knows: whoever asks from then on finds nobody here."""
        link, self.link = self.link, None
        if link is not None and self._remote is not None:
            await link.unsubscribe(self._remote)
            with suppress(BusUnavailable):  # a connection that is gone takes the interest with it
                await link.ping()

    async def drain(self, within: timedelta) -> None:
        if self.link is not None and self._remote is not None:
            await self.link.drain(self._remote, within)
