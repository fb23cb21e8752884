"""The replicas that this adapter serves, indexed by the hash of their bearer keys."""

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
    """A replica and the gRPC channel to it."""

    replica: AdapterReplica
    backend: Backend

    @property
    def model(self) -> AdapterModel:
        return self.replica.model


class ServedReplicas:
    """Owns one gRPC channel for each replica."""

    def __init__(self) -> None:
        self._served: dict[bytes, Served] = {}

    def __len__(self) -> int:
        return len(self._served)

    async def serve(self, replica: AdapterReplica) -> None:
        """Add or replace a replica. Requests in progress continue if it is still the same process."""
        before = self._served.get(_digest(replica.key))
        stays = before is not None and (before.replica.address, before.replica.token) == (
            replica.address,
            replica.token,
        )
        backend = before.backend if before is not None and stays else Backend(replica.address, token=replica.token)
        self._served[_digest(replica.key)] = Served(replica=replica, backend=backend)
        if before is not None and not stays:
            await before.backend.close()

    async def forget(self, key: str) -> None:
        """Remove a replica and end its requests in progress. Idempotent."""
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
    """Hash of a key: looking up by hash reveals nothing about keys through timing."""
    return hashlib.sha256(key.encode()).digest()
