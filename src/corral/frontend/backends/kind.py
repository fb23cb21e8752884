"""The kind of intents that is about backends: looks at nodes, sends installs, upgrades and deletes, reads the proof.

Plans of such operations are made in `backend_operations.py`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import msgspec

from corral.frontend.backends.catalogue import ImageSource
from corral.frontend.backends.decide.backend import artefact_of, evidence_of, payload_of
from corral.frontend.backends.inventory import InventoryKeeper
from corral.frontend.nodes.client import NodeClient, NodeUnreachable
from corral.frontend.nodes.decide.node import Node
from corral.frontend.operations.decide.intent import Intent, IntentPolicy, Payload, Sighting, Unproven, Verb
from corral.frontend.operations.decide.reasons import Reason
from corral.galleries.gallery import GalleryEntry
from corral.wire.backends import DeleteRequest, InstallRequest, UpgradeRequest


class ReplicaMoves(Protocol):
    """Takes replicas out of the way of a request that ends their processes."""

    async def before(self, intent: Intent, node: Node) -> Reason | None:
        """Why the backend may not be replaced yet; None when it may."""

    async def after(self, intent: Intent, stopped: Sequence[str], *, is_corral: bool) -> None:
        """The node has answered, and ended these processes. Must not fail."""


class BackendKind:
    """Implements the port of the dispatcher for intents about backends."""

    def __init__(
        self,
        inventory: InventoryKeeper,
        client: NodeClient,
        images: ImageSource,
        replicas: ReplicaMoves,
        *,
        policy: IntentPolicy,
    ) -> None:
        self._inventory = inventory
        self._client = client
        self._images = images
        self._replicas = replicas
        self._policy = policy

    async def look(self, intent: Intent) -> Sighting:
        inventory = await self._inventory.ask(intent.node_id)
        evidence = evidence_of(intent, inventory)
        moved = await moved_tag(intent, evidence, self._images)
        return evidence if moved is None else evidence_of(replace(intent, payload=moved), inventory)

    async def hold(self, intent: Intent, node: Node, *, replaces: bool) -> Reason | None:
        return await self._replicas.before(intent, node) if replaces else None

    async def send(self, intent: Intent, *, replaces: bool) -> list[str]:
        """Send the request exactly as it was asked for."""
        timeout = self._policy.timeout(intent.verb)
        if intent.verb is Verb.UPGRADE:
            return await self._upgrade(intent)
        if intent.verb is Verb.DELETE:
            request = DeleteRequest(backend=artefact_of(intent.payload).backend)
            return await self._client.delete(intent.node_id, request, timeout=timeout)
        await self._client.install(intent.node_id, _install(intent, force=replaces), timeout=timeout)
        return []

    async def _upgrade(self, intent: Intent) -> list[str]:
        """A worker that does not know upgrades is sent an install that replaces."""
        install, timeout = _install(intent, force=True), self._policy.timeout(Verb.UPGRADE)
        upgrade = msgspec.convert(install, UpgradeRequest, from_attributes=True)
        try:
            return await self._client.upgrade(intent.node_id, upgrade, timeout=timeout)
        except NodeUnreachable:
            await self._client.install(intent.node_id, install, timeout=timeout)
            return []

    async def after(self, intent: Intent, stopped: Sequence[str], *, is_corral: bool) -> None:
        await self._replicas.after(intent, stopped, is_corral=is_corral)


async def moved_tag(intent: Intent, evidence: Sighting, images: ImageSource) -> Payload | None:
    """The payload with the digest that the tag names now, if the tag was moved after the operation was accepted and
    the node has installed something else than it named then. None when it was not."""
    proof, artefact = evidence.proof, artefact_of(intent.payload)
    if not isinstance(proof, Unproven) or not proof.is_other_digest or not artefact.image:
        return None
    image = await images.facts(GalleryEntry(name=intent.subject, uri=artefact.image))
    return None if image is None else payload_of(replace(artefact, digests=frozenset({image.digest})))


def _install(intent: Intent, *, force: bool) -> InstallRequest:
    artefact = artefact_of(intent.payload)
    return InstallRequest(
        backend=artefact.backend,
        backend_galleries=artefact.galleries,
        uri=artefact.uri,
        name=artefact.name,
        alias=artefact.alias,
        force=force,
        op_id=intent.operation_id,
    )
