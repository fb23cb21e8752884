"""The replicas that this adapter serves, found by their bearer keys."""

import hashlib
from dataclasses import dataclass

from corral.base.errors import CorralError
from corral.rpc.backend import Backend
from corral.wire.adapter import AdapterModel, AdapterReplica


class KeyUnknown(CorralError):
    """No replica is served under this key."""

    code = "invalid_api_key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A replica and the channel to it."""

    told: AdapterReplica
    backend: Backend

    @property
    def model(self) -> AdapterModel:
        return self.told.model


class Replicas:
    """Owns one channel for each replica."""

    def __init__(self) -> None:
        self._served: dict[bytes, Served] = {}

    def __len__(self) -> int:
        return len(self._served)

    async def serve(self, told: AdapterReplica) -> None:
        """Add or replace. Requests under way go on if the replica is still the same process."""
        before = self._served.get(_digest(told.key))
        stays = before is not None and (before.told.address, before.told.token) == (told.address, told.token)
        backend = before.backend if before is not None and stays else Backend(told.address, token=told.token)
        self._served[_digest(told.key)] = Served(told=told, backend=backend)
        if before is not None and not stays:
            await before.backend.close()

    async def forget(self, key: str) -> None:
        """Ends the requests under way. Forgetting the unknown is nothing."""
        served = self._served.pop(_digest(key), None)
        if served is not None:
            await served.backend.close()

    def find(self, key: str) -> Served:
        served = self._served.get(_digest(key))
        if served is None:
            raise KeyUnknown
        return served

    async def close(self) -> None:
        while self._served:
            _, served = self._served.popitem()
            await served.backend.close()


def _digest(key: str) -> bytes:
    """Looked up by digest, so that the time a look-up takes tells nothing about keys."""
    return hashlib.sha256(key.encode()).digest()
