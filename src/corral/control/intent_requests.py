"""Sends to a node what an intent wishes, exactly as it was asked for."""

from corral.control.node_client import NodeClient, NodeUnreachable
from corral.domain.backend import Verb
from corral.domain.intent import Intent, IntentPolicy
from corral.wire.backend_changes import DeleteRequest, UpgradeRequest
from corral.wire.install import InstallRequest


class IntentRequests:
    def __init__(self, client: NodeClient, policy: IntentPolicy) -> None:
        self._client = client
        self._policy = policy

    async def send(self, intent: Intent, *, force: bool) -> list[str]:
        """Returns when the node has answered that it is done, with the processes that ended for it. Otherwise fails as
        calls to nodes do."""
        match intent.wish.verb:
            case Verb.INSTALL:
                await self._client.install(
                    intent.node_id, _install(intent, force=force), timeout=self._policy.timeout(Verb.INSTALL)
                )
                return []
            case Verb.UPGRADE:
                return await self._upgrade(intent)
            case Verb.DELETE:
                request = DeleteRequest(backend=intent.wish.artefact.backend)
                timeout = self._policy.timeout(Verb.DELETE)
                return await self._client.delete(intent.node_id, request, timeout=timeout)
            case Verb.REMOVE:
                model, timeout = intent.wish.artefact.backend, self._policy.timeout(Verb.REMOVE)
                await self._client.delete_model(intent.node_id, model, timeout=timeout)
                return []

    async def _upgrade(self, intent: Intent) -> list[str]:
        """A worker that does not know upgrades listens for installs all the same."""
        artefact, timeout = intent.wish.artefact, self._policy.timeout(Verb.UPGRADE)
        request = UpgradeRequest(
            backend=artefact.backend,
            backend_galleries=artefact.galleries,
            uri=artefact.uri,
            name=artefact.name,
            alias=artefact.alias,
            op_id=intent.operation_id,
        )
        try:
            return await self._client.upgrade(intent.node_id, request, timeout=timeout)
        except NodeUnreachable:
            await self._client.install(intent.node_id, _install(intent, force=True), timeout=timeout)
            return []


def _install(intent: Intent, *, force: bool) -> InstallRequest:
    artefact = intent.wish.artefact
    return InstallRequest(
        backend=artefact.backend,
        backend_galleries=artefact.galleries,
        uri=artefact.uri,
        name=artefact.name,
        alias=artefact.alias,
        force=force,
        op_id=intent.operation_id,
    )
