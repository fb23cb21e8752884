"""Operations about backends: install, upgrade and delete, from what a person asks for to what each node is sent."""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import Conflict, InvalidInput, NotFound
from corral.base.ids import NodeId, OperationId, new_operation_id
from corral.frontend.backends.catalogue import ImageSource, Lookups
from corral.frontend.backends.decide.backend import Wish, artefact_of, evidence_of, payload_of
from corral.frontend.backends.inventory import InventoryKeeper
from corral.frontend.backends.planning import Ask, GivenNames, Planned, galleries_for, name_for, plan_targets
from corral.frontend.backends.policies import BackendPolicies
from corral.frontend.nodes.client import NodeClient
from corral.frontend.nodes.contacts import NodeUnreachable
from corral.frontend.nodes.decide.node import Node, NodeStatus, NodeType, SeenNode
from corral.frontend.nodes.fleet import Fleet, NodeFilter
from corral.frontend.operations.decide.intent import (
    Intent,
    IntentKind,
    IntentPolicy,
    Payload,
    Proven,
    Sighting,
    Unproven,
    Verb,
)
from corral.frontend.operations.decide.operation import Operation
from corral.frontend.operations.decide.reasons import Reason, sentence
from corral.frontend.operations.service import Operations, PlannedTarget, Prepared, prepare
from corral.frontend.operations.store.operations import Generations
from corral.galleries.build_uris import understood_by_all
from corral.galleries.gallery import GalleryEntry
from corral.oci.errors import SourceInvalid
from corral.oci.references import PullSource, default_name, names_an_entry, parse_source
from corral.wire.backends import CorralInstall, DeleteRequest, InstallRequest, UpgradeRequest
from corral.wire.confinement import ConfinementWish

FRESH_WITHIN: Final = timedelta(seconds=5)
"""How long an upgrade waits for nodes to say whether they have the backend; of silent ones the last report counts."""
_NAME: Final = re.compile(r"[^/\\\x00\s][^/\\\x00]{0,254}")
_LONGEST: Final = 255


class WishGuard(Protocol):
    """Protects what the fleet shall have for ever."""

    async def refuse(self, wishes: Sequence[tuple[SeenNode, Wish]]) -> None:
        """Conflict when one of these wishes goes against something that is demanded."""

    async def against(self, wishes: Sequence[tuple[SeenNode, Wish]]) -> list[str]:
        """What these wishes go against, as sentences."""


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation would do as things are now, and what it was found out on."""

    id: OperationId
    """The id that the operation gets if it is started."""
    planned: tuple[Planned, ...]
    rules: tuple[str, ...] = ()
    """What is demanded and would be gone against: then nothing is started."""
    generations: Generations
    """The generation of each intent when the preview was made; an operation that is started from it is refused if one
    has changed."""


class BackendOperations:
    def __init__(
        self,
        operations: Operations,
        fleet: Fleet,
        inventory: InventoryKeeper,
        lookups: Lookups,
        clock: Clock,
        *,
        guard: WishGuard,
    ) -> None:
        self._operations = operations
        self._fleet = fleet
        self._inventory = inventory
        self._lookups = lookups
        self._clock = clock
        self._guard = guard

    async def start(self, ask: Ask) -> Operation:
        """Accept it, whole or not at all. InvalidInput, NotFound and Conflict say why not.

        What was accepted before under the same key is found first: since then nodes may have changed.
        """
        if (earlier := await self._operations.with_key(ask.idempotency_key)) is not None:
            return earlier
        return await self._operations.start(await self.prepare(ask), seen=ask.seen)

    async def preview(self, ask: Ask) -> Preview:
        """What would be done on each node, with the rules that are in the way instead of a refusal."""
        id = new_operation_id()
        planned = await self._planned(ask, id)
        if not planned:
            raise _nowhere(ask)
        keys = [(plan.node.node.id, IntentKind.BACKEND, plan.wish.key) for plan in planned]
        return Preview(
            id=id,
            planned=tuple(planned),
            rules=tuple(await self._guard.against([(plan.node, plan.wish) for plan in planned])),
            generations=await self._operations.generations(keys),
        )

    async def start_previewed(self, ask: Ask, preview: Preview) -> Operation:
        """Accept exactly what was previewed. Overtaken when something else is wanted at one of its places by now, as
        when somebody else has started the same meanwhile."""
        await self._guard.refuse([(plan.node, plan.wish) for plan in preview.planned])
        prepared = self._prepared(ask, preview.id, preview.planned)
        return await self._operations.start(prepared, seen=preview.generations)

    async def prepare(self, ask: Ask, *, guard: WishGuard | None = None) -> Prepared:
        """All of it but storing; `guard` is asked instead of the one for the rules in force."""
        id = new_operation_id()
        return self._prepared(ask, id, await self.plan(ask, id, guard=guard))

    def _prepared(self, ask: Ask, id: OperationId, planned: Sequence[Planned]) -> Prepared:
        if ask.refuses_unknown and all(plan.is_unknown for plan in planned):
            raise InvalidInput("backend", sentence(planned[0].hindrance))
        operation = Operation(
            id=id,
            verb=ask.verb,
            subject=ask.ref.backend or ask.ref.name,
            asked_by=ask.by,
            accepted_at=self._clock.now(),
            node_id=ask.nodes[0] if len(ask.nodes) == 1 else None,
            idempotency_key=ask.idempotency_key,
        )
        targets = [
            PlannedTarget.on(plan.node, plan.wish.key, payload=payload_of(plan.wish.artefact), hindrance=plan.hindrance)
            for plan in planned
        ]
        return prepare(operation, targets, delay=ask.delay)

    async def plan(self, ask: Ask, id: OperationId | None = None, *, guard: WishGuard | None = None) -> list[Planned]:
        """What would be done on each node. Raises when no node is meant, or a rule is in the way."""
        planned = await self._planned(ask, id or OperationId("plan"))
        await (guard or self._guard).refuse([(plan.node, plan.wish) for plan in planned])
        if not planned:
            raise _nowhere(ask)
        return planned

    async def galleries_for(self, backend: str, node: Node) -> str:
        """What a request is to say of galleries, so that the node finds the backend in those of this frontend."""
        catalogue = await self._lookups.galleries.catalogue()
        return "" if catalogue is None else galleries_for(backend, node, catalogue)

    async def name_for(self, backend: str, node: Node) -> str:
        """What a request to have a process there is to call the backend."""
        return name_for(backend, node, await self._lookups.galleries.catalogue())

    async def _planned(self, ask: Ask, id: OperationId) -> list[Planned]:
        ask = checked(ask)
        nodes = await self._addressed_nodes(ask)
        reports = await self._inventory.known([seen.node.id for seen in nodes])
        if ask.verb is Verb.UPGRADE:  # only nodes that have the backend are upgraded, so they are asked again
            reached = [seen.node.id for seen in nodes if seen.status is not NodeStatus.OFFLINE]
            reports |= await self._inventory.refresh(reached, within=FRESH_WITHIN)
        names = GivenNames()
        if ask.verb is not Verb.INSTALL:
            aliased = await self._inventory.aliased(ask.ref.backend)
            names = GivenNames(aliased=aliased, installed=await self._inventory.asked_for(ask.ref.backend))
        return await plan_targets(ask, nodes, reports, self._lookups, id=id, names=names)

    async def _addressed_nodes(self, ask: Ask) -> list[SeenNode]:
        """The nodes that were asked for, never pending or agent nodes; absent ones are waited for."""
        if ask.nodes:
            named_nodes = await self._fleet.some(ask.nodes)
            return [_usable(node_id, named_nodes.get(node_id)) for node_id in dict.fromkeys(ask.nodes)]
        node_filter = NodeFilter(types=frozenset({NodeType.BACKEND}), labels=ask.labels)
        nodes = [seen for seen in await self._fleet.all(node_filter) if seen.status is not NodeStatus.PENDING]
        if not nodes:
            labels = ", ".join(f"{key}={value}" for key, value in ask.labels.items())
            raise Conflict(f"no node has the labels {labels}" if labels else "there is no node to do that on")
        return nodes


def _nowhere(ask: Ask) -> Conflict:
    return Conflict(f'backend "{ask.ref.backend}" is not installed on any node')


def _usable(node_id: NodeId, seen: SeenNode | None) -> SeenNode:
    if seen is None:
        raise NotFound(f"no node has the id {node_id}")
    if seen.node.type is not NodeType.BACKEND:
        raise Conflict(f"{seen.node.name} is an agent node: it has no backends")
    if seen.status is NodeStatus.PENDING:
        raise Conflict(f"{seen.node.name} waits for approval")
    return seen


def checked(ask: Ask) -> Ask:
    """The ask with a usable name and uri. InvalidInput says what is wrong.

    An install by uri needs a name, since workers look for the backend under one afterwards. Files and archives have one
    themselves, as LocalAI has it; images do not.
    """
    ref = ask.ref
    for field, text in (("backend", ref.backend), ("alias", ref.alias)):
        if len(text) > _LONGEST or not text.isprintable():
            raise InvalidInput(field, f"{text[:100]!r} is too long for a name, or has characters that nobody can read")
    if not ref.uri:
        if not ref.backend:
            raise InvalidInput("backend", "name or uri required")
        if not _is_name(ref.backend.strip().rpartition("@")[2]):
            problem = f"{ref.backend[:100]!r} cannot be the name of a backend; a uri goes into `uri`"
            raise InvalidInput("backend", problem)
        return ask
    if ask.verb is Verb.DELETE:
        raise InvalidInput("uri", "a delete takes a name")
    name = ref.name or ref.backend or default_name(_source(ref.uri))
    if not name:
        raise InvalidInput("name", f"an install of the image {ref.uri[:100]} needs a name for the backend")
    if not _is_name(name):
        raise InvalidInput("name", f"{name[:100]!r} cannot be the name of a backend")
    _source(ref.uri)
    return replace(ask, ref=replace(ref, name=name, backend=name, uri=understood_by_all(ref.uri)))


def _is_name(text: str) -> bool:
    """Whether the text is safe as the name of a directory on every node."""
    return _NAME.fullmatch(text) is not None and not text.startswith(".")


def _source(uri: str) -> PullSource:
    if any(character.isspace() for character in uri):
        raise InvalidInput("uri", f"{uri[:100]!r} has blanks")
    if names_an_entry(uri):
        raise InvalidInput("uri", f"{uri[:100]!r} is none; a backend of a gallery is asked for with `backend`")
    try:
        return parse_source(uri)
    except SourceInvalid as error:
        raise InvalidInput("uri", error.message) from error


class ReplicaMoves(Protocol):
    """Takes replicas out of the way of a request that ends their processes."""

    async def installing(self, intent: Intent) -> Reason | None:
        """Why the node may still install the backend although no operation wants it: a load asked for it, and the node
        has not answered. None when that is not so."""

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
        policies: BackendPolicies,
    ) -> None:
        self._inventory = inventory
        self._client = client
        self._images = images
        self._replicas = replicas
        self._policy = policy
        self._policies = policies

    async def look(self, intent: Intent) -> Sighting:
        if intent.verb is Verb.DELETE:
            return await self._look_for_absence(intent)
        inventory = await self._inventory.ask(intent.node_id)
        evidence = evidence_of(intent, inventory)
        moved = await moved_tag(intent, evidence, self._images)
        return evidence if moved is None else evidence_of(replace(intent, payload=moved), inventory)

    async def _look_for_absence(self, intent: Intent) -> Sighting:
        """Absence proves nothing while the node may still be installing the backend for a load.

        Loads are looked at first: one that was answered before the node reports shows in the report.
        """
        why = await self._replicas.installing(intent)
        evidence = evidence_of(intent, await self._inventory.ask(intent.node_id))
        return replace(evidence, unanswered=why) if isinstance(evidence.proof, Proven) else evidence

    async def hold(self, intent: Intent, node: Node, *, replaces: bool) -> Reason | None:
        return await self._replicas.before(intent, node) if replaces else None

    async def send(self, intent: Intent, *, replaces: bool) -> list[str]:
        """Send the request exactly as it was asked for."""
        timeout = self._policy.timeout(intent.verb)
        artefact = artefact_of(intent.payload)
        if intent.verb is Verb.DELETE:
            return await self._client.delete(intent.node_id, DeleteRequest(backend=artefact.backend), timeout=timeout)
        install = InstallRequest(
            backend=artefact.backend,
            backend_galleries=artefact.galleries,
            uri=artefact.uri,
            name=artefact.name,
            alias=artefact.alias,
            force=replaces or intent.verb is Verb.UPGRADE,
            op_id=intent.operation_id,
        )
        if intent.verb is Verb.UPGRADE:
            upgrade = msgspec.convert(install, UpgradeRequest, from_attributes=True)
            try:
                return await self._client.upgrade(intent.node_id, upgrade, timeout=timeout)
            except NodeUnreachable:
                pass  # a worker that does not know upgrades is sent an install that replaces
        wish = await self._policies.wish(artefact.name or artefact.backend)
        if wish != ConfinementWish() and await self._client.can_confine(intent.node_id):
            install.corral = CorralInstall(confinement=wish)
        await self._client.install(intent.node_id, install, timeout=timeout)
        return []

    async def after(self, intent: Intent, stopped: Sequence[str], *, is_corral: bool) -> None:
        await self._replicas.after(intent, stopped, is_corral=is_corral)


async def moved_tag(intent: Intent, evidence: Sighting, images: ImageSource) -> Payload | None:
    """The payload with the digest that the tag names now, if the tag was moved after the operation was accepted and
    the node has installed something else than it named then. None when it was not."""
    proof = evidence.proof
    if not isinstance(proof, Unproven) or not proof.is_other_digest:
        return None
    artefact = artefact_of(intent.payload)
    if not artefact.image:
        return None
    image = await images.facts(GalleryEntry(name=intent.subject, uri=artefact.image))
    return None if image is None else payload_of(replace(artefact, digests=frozenset({image.digest})))
