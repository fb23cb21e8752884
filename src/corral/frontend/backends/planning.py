"""What an operation would do at each node: which build, how many bytes, or why not. Nothing is stored or sent here.

Galleries and registries are asked for a short time. What they do not tell is `unknown`: it is sent, and the node's own
worker decides.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base.ids import NodeId, OperationId
from corral.frontend.backends.catalogue import Lookups, facts_of
from corral.frontend.backends.decide.backend import Artefact, BackendEntry, Inventory, Wish, prove, traits_of
from corral.frontend.nodes.decide.node import Node, SeenNode
from corral.frontend.operations.decide.intent import Proven, Verb
from corral.frontend.operations.decide.reasons import Reason, ReasonCode, because
from corral.frontend.operations.store.operations import Generations
from corral.galleries.build_uris import BackendRef, is_pulled, is_same_source
from corral.galleries.catalogue import BackendCatalogue, Missing, ResolvedBuild, UnresolvedBuild
from corral.galleries.fit import (
    Blocked,
    Fits,
    Unknown,
    blocked_by,
    judge_build,
    wanted_digests,
)
from corral.galleries.gallery import GalleryEntry
from corral.galleries.places import is_for_everybody
from corral.oci.manifests import ImageFacts, PlatformImage
from corral.wire.backends import Gallery

_NO_GALLERIES: Final = "the galleries could not be read from here"
_OTHER_GALLERIES: Final = "galleries that come with a request are read by the node alone"
_NOT_IN_GALLERIES: Final = "no gallery that can be read from here has it"
_ALIAS_UNKNOWN: Final = (
    "an alias that another frontend gave it is lost: no report tells it, and LocalAI's workers keep only what is sent"
)


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asks an operation to do, before nodes and builds are chosen."""

    verb: Verb
    ref: BackendRef
    force: bool = False
    nodes: tuple[NodeId, ...] = ()
    """Exactly these; none mean all that match the labels."""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    by: str
    idempotency_key: str = ""
    delay: timedelta = timedelta(0)
    """Somebody else is about to do it; looked at when that should be done."""
    refuses_unknown: bool = False
    """Refuse a name that nobody knows at once, instead of an operation that is blocked everywhere."""
    seen: Generations | None = None
    """What this was decided on. Where something else is wanted by now nothing is started, and Overtaken says so."""


class GivenNames(msgspec.Struct, frozen=True, kw_only=True):
    """What earlier operations asked for under a name. Nodes report neither aliases nor who asked for an install."""

    aliased: Mapping[NodeId, str] = msgspec.field(default_factory=dict)
    """The backend that this name is an alias of, by node."""
    installed: Mapping[NodeId, Artefact] = msgspec.field(default_factory=dict)
    """What was last asked for under this name itself, unless it was deleted, by node."""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation would do at one node."""

    node: SeenNode
    wish: Wish
    hindrance: Reason | None = None
    """Why nothing will be sent; None when something may be."""
    is_unknown: bool = False
    """Neither a gallery nor the node knows the name."""
    unknown: str = ""
    """What could not be found out beforehand; empty when all is known, or it is blocked."""
    is_reached: bool = False
    """The node has said already that it is as it should be: nothing will be fetched or removed."""
    download_bytes: int | None = None
    """What the node would fetch; None when nobody knows."""


async def plan_targets(
    ask: Ask,
    nodes: Sequence[SeenNode],
    inventories: Mapping[NodeId, Inventory],
    lookups: Lookups,
    *,
    id: OperationId,
    names: GivenNames,
) -> list[Planned]:
    """What an operation would do at each node; an upgrade leaves out nodes whose last report lacks the backend."""
    catalogue = await _catalogue_for(ask, lookups)

    @functools.cache  # a fleet of a thousand nodes has a handful of names and capabilities
    def meaning(name: str, capability: str) -> _Meaning:
        return _Meaning(unknown=_NO_GALLERIES) if catalogue is None else _meaning(ask, name, capability, catalogue)

    drafts = []
    for seen in nodes:
        report = inventories.get(seen.node.id)
        is_itself_there = report is not None and report.find(ask.ref.backend) is not None
        node_name = ask.ref.backend if is_itself_there else names.aliased.get(seen.node.id, ask.ref.backend)
        draft = _draft(ask, node_name, seen, report, meaning)
        installed_as = names.installed.get(seen.node.id)
        # Asked for by us, so that its alias is known. Before this version upgrades were sent without a uri.
        is_ours = node_name != ask.ref.backend or (
            draft.entry is not None
            and installed_as is not None
            and (not installed_as.uri or is_same_source(installed_as.uri, draft.entry.uri))
        )
        is_at_risk = ask.verb is Verb.UPGRADE and draft.is_external and seen.node.peer is None and not is_ours
        drafts.append(replace(draft, alias_warning=_ALIAS_UNKNOWN) if is_at_risk else draft)
    if ask.verb is Verb.UPGRADE:
        drafts = [draft for draft in drafts if draft.entry is not None]
    builds = [draft.build for draft in drafts if draft.build is not None and not draft.unknown]
    images = {} if ask.verb is Verb.DELETE else await facts_of(builds, lookups.images)
    return [_planned(ask, draft, images.get(draft.uri), id) for draft in drafts]


async def _catalogue_for(ask: Ask, lookups: Lookups) -> BackendCatalogue | None:
    """The catalogue; None if it does not matter, or cannot be read. A name to install that it lacks may be new."""
    if ask.ref.uri:
        return None
    catalogue = await lookups.galleries.catalogue()
    if catalogue is None or ask.verb is not Verb.INSTALL or ask.ref.galleries or catalogue.knows(ask.ref.backend):
        return catalogue
    return await lookups.galleries.rechecked()


class _Draft(msgspec.Struct, frozen=True, kw_only=True):
    """What a name means at one node."""

    node: SeenNode
    key: str
    """The canonical name of the backend, which its directory has."""
    sent: str
    """The name that is sent to the node."""
    build: GalleryEntry | None = None
    is_external: bool = False
    """The build comes from a uri, not from a gallery."""
    alias_warning: str = ""
    """What happens to an alias that we cannot know; empty when there is none to lose."""
    galleries: str = ""
    """The galleries that have the build, so that the node finds the same one."""
    hindrance: Reason | None = None
    is_unknown: bool = False
    """No gallery and no inventory knows the name."""
    unknown: str = ""
    inventory: Inventory | None = None
    """The node's last report."""

    @property
    def entry(self) -> BackendEntry | None:
        """What the node has of it."""
        return None if self.inventory is None else self.inventory.find(self.key)

    @property
    def uri(self) -> str:
        return "" if self.build is None else self.build.artefact


class _Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """What the galleries say about a name, for machines of one capability."""

    resolved: ResolvedBuild | None = None
    galleries: str = ""
    hindrance: Reason | None = None
    is_unknown: bool = False
    """No gallery knows the name."""
    unknown: str = ""


def _meaning(ask: Ask, name: str, capability: str, catalogue: BackendCatalogue) -> _Meaning:
    resolved = catalogue.resolve(name, capability)
    if isinstance(resolved, ResolvedBuild):
        galleries = _told_galleries(resolved.build, catalogue)
        return _Meaning(resolved=resolved, galleries=galleries, unknown=_OTHER_GALLERIES if ask.ref.galleries else "")
    hindrance = _hindrance(ask, resolved, catalogue)
    is_unknown = hindrance is not None and resolved.missing is Missing.UNKNOWN
    return _Meaning(hindrance=hindrance, is_unknown=is_unknown, unknown=_NOT_IN_GALLERIES)


def _draft(
    ask: Ask, name: str, seen: SeenNode, inventory: Inventory | None, meaning: Callable[[str, str], _Meaning]
) -> _Draft:
    bare = name.strip().rpartition("@")[2]
    draft = _Draft(node=seen, key=bare, sent=bare, inventory=inventory)
    if uri := ask.ref.uri or _origin(ask, name, draft.entry):
        return replace(draft, build=GalleryEntry(name=bare, uri=uri), is_external=True)
    resolution = meaning(name, traits_of(seen.node).effective_capability)
    return _Draft(
        node=seen,
        key=bare if resolution.resolved is None else resolution.resolved.key,
        sent=bare if resolution.resolved is None else resolution.resolved.entry.name,
        build=None if resolution.resolved is None else resolution.resolved.build,
        galleries=resolution.galleries,
        hindrance=resolution.hindrance,
        is_unknown=resolution.is_unknown and draft.entry is None,
        unknown=resolution.unknown,
        inventory=inventory,
    )


def _hindrance(ask: Ask, missing: UnresolvedBuild, catalogue: BackendCatalogue) -> Reason | None:
    """Why an install cannot succeed; None when a gallery of the request's own, or one that could not be read, may have
    what ours do not."""
    if ask.verb is not Verb.INSTALL:
        return None
    blocked = blocked_by(missing)
    if missing.missing is Missing.UNKNOWN:
        blocked = replace(blocked, reason="" if ask.ref.galleries else catalogue.absence(missing))
    return _does_not_fit(blocked) if blocked.reason else None


def _does_not_fit(blocked: Blocked) -> Reason:
    return because(ReasonCode.DOES_NOT_FIT, hindrance=blocked.hindrance.value, text=blocked.reason)


def _origin(ask: Ask, name: str, entry: BackendEntry | None) -> str:
    """The uri to upgrade from, of a backend that was installed from one: a gallery may have another one of that name,
    and is meant only if it is named. Workers that get no uri look in their galleries alone."""
    if ask.verb is not Verb.UPGRADE or "@" in name or entry is None or entry.is_system:
        return ""
    return "" if entry.gallery_url else entry.uri


def galleries_for(name: str, node: Node, catalogue: BackendCatalogue) -> str:
    """JSON of the galleries in which the node finds the build that this name means there; empty when it is not known
    from here, or not from a gallery that every node can read."""
    resolved = catalogue.resolve(name, traits_of(node).effective_capability)
    return _told_galleries(resolved.build, catalogue) if isinstance(resolved, ResolvedBuild) else ""


def name_for(name: str, node: Node, catalogue: BackendCatalogue | None) -> str:
    """What to call a backend towards a node. LocalAI's workers start only what they have under exactly the name that
    they are asked for: `gallery@name`, or a name in another letter case, is downloaded and then not found."""
    if node.peer is not None:
        return name
    bare = name.strip().rpartition("@")[2]
    resolved = None if catalogue is None else catalogue.resolve(name, traits_of(node).effective_capability)
    entry = resolved.entry.name if isinstance(resolved, ResolvedBuild) else bare
    return entry if entry.lower() == bare.lower() else bare  # by an alias another entry is found


def _told_galleries(build: GalleryEntry, catalogue: BackendCatalogue) -> str:
    """JSON of the galleries that every node can read, if the build is from one of them: what we look at and what the
    node fetches is then the same. What ships with Corral each node has itself."""
    sources = [gallery.source for gallery in catalogue.galleries]
    shared = [source for source in sources if all(map(is_for_everybody, source.urls))]
    if catalogue.source_of(build) not in shared:
        return ""
    galleries = [
        Gallery(url=source.url, name=source.name, mirrors=list(source.mirrors), verification=dict(source.verification))
        for source in shared
    ]
    return msgspec.json.encode(galleries).decode()


def _planned(ask: Ask, draft: _Draft, image: ImageFacts | None, id: OperationId) -> Planned:
    wish = _wish(ask, draft, id)
    if draft.hindrance:
        return Planned(node=draft.node, wish=wish, hindrance=draft.hindrance, is_unknown=draft.is_unknown)
    if _is_shown(wish, draft.inventory):  # an install of what is there wants nothing newer
        return Planned(node=draft.node, wish=wish, is_reached=True, download_bytes=0)
    if ask.verb is Verb.DELETE:
        return Planned(node=draft.node, wish=wish, download_bytes=0)
    traits = traits_of(draft.node.node)
    if image is not None:
        digests = wanted_digests(image, traits.platform)
        wish = replace(wish, artefact=replace(wish.artefact, digests=digests, image=image.uri))
    if _is_shown(wish, draft.inventory):
        return Planned(node=draft.node, wish=wish, is_reached=True, download_bytes=0)
    if draft.build is None or draft.unknown:
        return Planned(node=draft.node, wish=wish, unknown=draft.unknown)
    match judge_build(draft.build, traits, image):
        case Blocked() as blocked:
            return Planned(node=draft.node, wish=wish, hindrance=_does_not_fit(blocked))
        case Unknown(reason=reason, manifest=manifest):
            unknown = "; ".join(filter(None, (reason, draft.alias_warning)))
            return Planned(node=draft.node, wish=wish, unknown=unknown, download_bytes=_bytes(manifest))
        case Fits(manifest=manifest):
            return Planned(node=draft.node, wish=wish, unknown=draft.alias_warning, download_bytes=_bytes(manifest))


def _wish(ask: Ask, draft: _Draft, id: OperationId) -> Wish:
    build = draft.build
    # Of what ships with Corral each node has a version of its own.
    is_looked_up = build is not None and is_pulled(build.artefact) and not draft.unknown and ask.verb is not Verb.DELETE
    artefact = Artefact(
        backend=draft.sent,
        galleries=ask.ref.galleries or draft.galleries,
        uri=draft.uri if draft.is_external else "",
        name=draft.key if draft.is_external else ask.ref.name,
        alias=ask.ref.alias,
        version=build.version if build is not None and is_looked_up else "",
        renewal=id if ask.force and ask.verb is Verb.INSTALL else "",
    )
    return Wish(verb=ask.verb, key=draft.key, artefact=artefact)


def _is_shown(wish: Wish, inventory: Inventory | None) -> bool:
    return inventory is not None and isinstance(prove(wish, inventory, None), Proven)


def _bytes(manifest: PlatformImage | None) -> int | None:
    return None if manifest is None else manifest.download_bytes
