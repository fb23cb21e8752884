"""What control lacks at the moment: for whoever asks whether it is ready, and for its gateways."""

from corral.base.errors import CorralError
from corral.bus.port import Bus
from corral.state.db import Database


class Readiness:
    """The words are for everybody: no address and no reason that a stranger should not read."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus

    async def problems(self) -> list[str]:
        """Nothing when the database answers and NATS is connected."""
        found = [] if self._bus.connected else ["NATS is not connected"]
        try:
            await self._database.check()
        except CorralError:
            found.append("the database does not answer")
        return found
