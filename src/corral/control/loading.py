"""One load on one node: have the process, tell it what to load, and know where requests for it go."""

from dataclasses import replace
from datetime import timedelta
from typing import Protocol

import msgspec
from msgspec.structs import replace as replace_struct

from corral.base.clock import Clock
from corral.base.ids import NodeId
from corral.control.load_needs import LoadNeeds
from corral.control.models import Models
from corral.control.node_client import NodeClient
from corral.domain.load_job import LoadPolicy
from corral.domain.model import ModelSpec, load_options, threads_of
from corral.domain.model_requests import request_rules
from corral.domain.node import Node
from corral.domain.replica import Replica
from corral.protocol.adapter import AdapterModel
from corral.protocol.install import CorralInstall, InstallRequest
from corral.protocol.registration import Feature
from corral.rpc.backend import Backend
from corral.rpc.messages import ModelOptions
from corral.state.secrets import Secrets, node_secret_name


class BackendLoader(Protocol):
    """How a backend is told what to load."""

    async def load(self, address: str, *, token: str, options: ModelOptions, timeout: timedelta) -> None:
        """`rpc.errors.BackendError` when it does not."""


class GrpcLoader:
    """A channel for every call: loads are rare."""

    async def load(self, address: str, *, token: str, options: ModelOptions, timeout: timedelta) -> None:
        async with Backend(address, token=token) as backend:
            await backend.load(options, timeout=timeout)


class Tokens:
    """What a node's backends want to be shown: the node's own secret, or the token that LocalAI's workers share."""

    def __init__(self, secrets: Secrets, registration_token: str) -> None:
        self._secrets = secrets
        self._shared = registration_token

    async def of(self, node_id: NodeId) -> str:
        return await self._secrets.get(node_secret_name(node_id)) or self._shared


def adapter_model(spec: ModelSpec, *, file: str, threads: int) -> AdapterModel:
    """How an adapter translates requests for this model, whose weights are in this file on the node, if in any."""
    rules = request_rules(spec.config)
    told = msgspec.convert({"name": spec.name, "identity": spec.model, "file": file, **rules}, AdapterModel)
    return replace_struct(told, defaults=replace_struct(told.defaults, threads=threads_of(spec.config, threads)))


class Loading:
    """Does, and stores nothing."""

    def __init__(
        self,
        nodes: NodeClient,
        models: Models,
        tokens: Tokens,
        backends: BackendLoader,
        needs: LoadNeeds,
        *,
        threads: int,
    ) -> None:
        self._nodes = nodes
        self._models = models
        self._tokens = tokens
        self._backends = backends
        self._needs = needs
        self._threads = threads

    async def load(self, replica: Replica, node: Node, spec: ModelSpec, policy: LoadPolicy, clock: Clock) -> Replica:
        """The replica as it is when it serves. Doing this again for the same place finds the same process."""
        await self._needs.admit(node, spec, since=self._models.time_of(spec), now=clock.now())
        request = InstallRequest(backend=spec.backend, model_id=spec.name, replica_index=replica.index)
        if node.peer is not None and Feature.ADAPTER in node.peer.features:
            file = self._models.file_of(spec)
            request.corral = CorralInstall(model=adapter_model(spec, file=file, threads=self._threads))
        installed = await self._nodes.install(node.id, request, timeout=policy.install)
        address = installed.address or node.address
        fields = load_options(
            spec,
            models=self._models.directory.absolute(),
            threads=self._threads,
            is_asked_directly=installed.is_asked_directly,
        )
        await self._backends.load(
            address,
            token=await self._tokens.of(node.id),
            options=ModelOptions(**fields),  # type: ignore[arg-type]
            timeout=policy.load_time(self._models.size_of(spec)),
        )
        return replace(
            replica,
            address=address,
            url=installed.url,
            key=installed.key,
            routes=installed.routes,
            changed_at=clock.now(),
        )

    async def stop(self, replica: Replica) -> None:
        """End what may be left of a load that failed."""
        await self._nodes.stop(replica.node_id, replica.process_key)
