"""What control lacks at the moment: for whoever asks whether it is ready, and for its gateways."""

from contextlib import suppress

from corral.base.errors import CorralError
from corral.bus.port import Bus
from corral.frontend.store.db import Database


class ControlReadiness:
    """The words are for everybody: no address and no reason that a stranger should not read."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus

    async def problems(self) -> list[str]:
        """Nothing when the database answers and NATS is connected."""
        with suppress(CorralError):
            await self._database.check()
        return self.known()

    def known(self) -> list[str]:
        """Return the problems as of the last check of the database, at most a second ago while control runs."""
        problems = [] if self._bus.connected else ["NATS is not connected"]
        return problems if self._database.is_answering else [*problems, "the database does not answer"]
