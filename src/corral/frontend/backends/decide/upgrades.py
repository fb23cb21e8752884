"""Which backends of a fleet are outdated: what nodes have, against what galleries and registries offer.

| a node is  | when (the first line that holds)                                                              |
|------------|-----------------------------------------------------------------------------------------------|
| `current`  | it has a digest that the offered image has: the index, or any member of it                    |
| `outdated` | it has other digests, so the tag was moved or the gallery names another image                 |
| `outdated` | the gallery tells a version, and the node has another one or none                             |
| `unknown`  | it has that version and reports no digest, while the registry tells one: the tag may have moved |
| `current`  | it has the version that the gallery tells, and the registry tells no digest                   |
| either     | it came from an image on the node's own disk, and has the digest of that image or another one |
| `unknown`  | nobody offers it any more, or neither side tells anything that could be compared              |

Beside this, nodes are compared with each other: those that have another build than most *differ*. A worker compares its
own backends by the same rule, `judge_freshness`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from corral.base.setting_kinds import SWITCH, duration
from corral.base.settings import setting
from corral.frontend.backends.decide.backend import BackendEntry, BuildIdentity, Holding
from corral.galleries.build_uris import BuildMarks, Evidence, Freshness, is_same_source, judge_freshness


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradePolicy:
    """When it is looked for something newer, and whether that is installed without being asked for."""

    period: timedelta = setting(
        duration("0s", "365d"),
        """How often galleries and registries are asked whether they have something newer than the nodes; 0s: only when
        somebody asks for it. 6 hours, as LocalAI does. However many frontends there are, one of them asks.""",
        name="upgrade_check_period",
        default="6h",
    )
    is_automatic: bool = setting(
        SWITCH,
        """Whether backends that turn out to be outdated are upgraded at once, by an operation like any other. Not by
        default: an upgrade ends the processes of the backend, and people like to choose when.""",
        name="auto_upgrade_backends",
        aliases=("LOCALAI_AUTO_UPGRADE_BACKENDS",),
        default=False,
    )


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What can be had under the name of a backend."""

    backend: str
    uri: str
    is_external: bool = False
    """No gallery has it: this is the uri that nodes have it from."""
    version: str = ""
    digest: str = ""
    """Digest that the uri resolved to when it was looked at: the index's, where there is one."""
    member_digests: frozenset[str] = frozenset()
    looked_at: datetime | None = None
    """When the registry last reported the digests, perhaps before this check; None when it never did."""

    @property
    def digests(self) -> frozenset[str]:
        return frozenset(self.member_digests | {self.digest} - {""})


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """What was offered at one moment, for all that the fleet had then."""

    at: datetime
    offers: tuple[Offer, ...] = ()
    problem: str = ""
    """Why the galleries could not be read."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    holding: Holding
    freshness: Freshness
    reason: str = ""
    """Why it is not known whether it is outdated; empty when it is."""
    differs: bool = False
    """Most nodes have another build, and this is not the one that is offered."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One backend across the fleet."""

    backend: str
    offer: Offer | None
    """The gallery's, or that of the uri which all nodes have it from."""
    usual: BuildIdentity
    """The build that most nodes have."""
    nodes: tuple[Judged, ...]

    @property
    def outdated(self) -> tuple[Judged, ...]:
        return tuple(node for node in self.nodes if node.freshness is Freshness.OUTDATED)

    @property
    def differing(self) -> tuple[Judged, ...]:
        return tuple(node for node in self.nodes if node.differs)

    @property
    def needs_upgrade(self) -> bool:
        """Whether somebody should do something. Nodes that merely differ are no reason while an offer says that all
        is well."""
        return bool(self.outdated or self.differing)


def compare(held: Mapping[str, Sequence[Holding]], check: Check | None) -> list[Comparison]:
    """All backends that can be upgraded, by name: not what came with a system, nor what only points to another."""
    offers = check.offers if check is not None else ()
    comparisons = []
    for backend, holdings in sorted(held.items()):
        upgradable = [holding for holding in holdings if not holding.entry.is_system and not holding.entry.is_meta]
        if upgradable:
            comparisons.append(_compared(backend, upgradable, [offer for offer in offers if offer.backend == backend]))
    return comparisons


def _compared(backend: str, holdings: Sequence[Holding], offers: Sequence[Offer]) -> Comparison:
    telling = [holding for holding in holdings if holding.is_telling]
    usual = usual_build((holding.build, holding.entry.installed_at) for holding in telling) or ("", "")
    matched = [offer_for(holding.entry, offers) for holding in holdings]
    nodes = tuple(_judged(holding, offer, usual) for holding, offer in zip(holdings, matched, strict=True))
    return Comparison(backend=backend, offer=next(filter(None, matched), None), usual=usual, nodes=nodes)


def usual_build(installed: Iterable[tuple[BuildIdentity, str]]) -> BuildIdentity | None:
    """The build that most nodes have; of equally frequent ones the one that was installed last."""
    numbers: Counter[BuildIdentity] = Counter()
    latest: dict[BuildIdentity, str] = {}
    for build, at in installed:
        numbers[build] += 1
        latest[build] = max(latest.get(build, ""), at)
    return max(numbers, key=lambda build: (numbers[build], latest[build]), default=None)


def offer_for(entry: BackendEntry, offers: Sequence[Offer]) -> Offer | None:
    """The gallery's offer; for what came from a uri, the one of that uri."""
    from_galleries = [offer for offer in offers if not offer.is_external]
    if entry.gallery_url or not entry.uri:
        return next(iter(from_galleries), None)
    return next((offer for offer in offers if is_same_source(offer.uri, entry.uri)), next(iter(from_galleries), None))


def _judged(holding: Holding, offer: Offer | None, usual: BuildIdentity) -> Judged:
    freshness, reason = assess(holding.entry, offer)
    is_odd = holding.is_telling and not is_alike(holding.build, usual)
    differs = is_odd and freshness is not Freshness.CURRENT
    return Judged(holding=holding, freshness=freshness, reason=reason, differs=differs)


NOT_OFFERED: Final = "neither a gallery nor a registry tells what it should be"


def assess(entry: BackendEntry, offer: Offer | None) -> tuple[Freshness, str]:
    """How what a node has stands against what is offered, and why that is not known if it is not."""
    installed = BuildMarks(version=entry.version, digests=entry.digests)
    if offer is None:
        if not entry.source_digest or not entry.digests:
            return Freshness.UNKNOWN, NOT_OFFERED
        return judge_freshness(installed, BuildMarks(digests=frozenset({entry.source_digest})))[0], ""
    freshness, evidence = judge_freshness(installed, BuildMarks(version=offer.version, digests=offer.digests))
    if evidence is Evidence.UNREPORTED_DIGEST:
        has = f"the version {entry.version} is the one offered" if offer.version else "the gallery tells no version"
        return freshness, f"the node reports no digest; {has}, and its tag may have been moved since"
    return freshness, "its registry has not told what it has" if evidence is Evidence.NOTHING else ""


def is_alike(build: BuildIdentity, other: BuildIdentity) -> bool:
    """Whether all that both report is equal: LocalAI's workers report no digests of some images."""
    return all(a == b for a, b in zip(build, other, strict=True) if a and b)
