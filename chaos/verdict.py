"""What must be true after everything came to rest: compares what people were told with what is on the disks.

Neither side is the product: wishes were noted when their answers came, disks are the simulated workers' own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from chaos.people import Ledger, Place, Wish
from chaos.workers import WorkerState
from corral.frontend.operations.decide.intent import Verb
from corral.wire.operation_views import OperationView, TargetView
from tests.kit.simulated_backends import DiskWrite

Journals = Mapping[str, Sequence[DiskWrite]]
"""By the ids of nodes."""


def all_is_as_it_was_last_wished(ledger: Ledger, workers: Iterable[WorkerState]) -> int:
    """How many places were compared."""
    disks = {one.node_id: one.disk for one in workers}
    journals = _journals(workers)
    compared = 0
    for place, wish in ledger.last.items():
        if ledger.is_free(place):
            continue
        compared += 1
        disk = disks[place[0]]
        assert _fits(wish, disk.get(wish.backend)), f"{place} is {disk.get(wish.backend)!r}, not as {wish} wants it"
        if wish.must_renew:
            assert _renewals(wish, place, journals), f"{place} was never renewed for {wish}"
    return compared


def nothing_was_lost_or_invented(ledger: Ledger, history: Sequence[OperationView]) -> None:
    """Every operation that was accepted is in the record with all its targets, and no other."""
    known = {one.id: {target.node_id for target in one.targets} for one in history}
    for wish in ledger.wishes.values():
        assert wish.operation in known, f"lost: {wish}"
        assert known[wish.operation] == set(wish.nodes), f"other targets: {wish}"
    invented = known.keys() - ledger.wishes.keys()
    assert not invented, f"nobody was told that these were accepted: {invented}"


def nothing_proven_was_downloaded_again(workers: Iterable[WorkerState]) -> None:
    for worker in workers:
        repeated = [one for one in worker.journal if one.is_repeated]
        assert not repeated, f"{worker.name} had to download again what it had shown: {repeated}"


def no_success_without_proof(ledger: Ledger, history: Sequence[OperationView], workers: Iterable[WorkerState]) -> int:
    """How many successes were proven from the journals."""
    journals = _journals(workers)
    checked = 0
    for operation in history:
        wish = ledger.wishes[operation.id]
        for target in operation.targets:
            if target.status == "success":
                assert _was_true(wish, target, journals[target.node_id]), f"no proof of {target} for {wish}"
                checked += 1
    return checked


def _journals(workers: Iterable[WorkerState]) -> Journals:
    return {one.node_id: one.journal for one in workers}


def _fits(wish: Wish, uri: str | None) -> bool:
    """Whether a backend from there, or none, is what was wished; apart from when it was installed."""
    if wish.verb is Verb.DELETE:
        return uri is None
    return uri is not None and wish.uri in ("", uri)


def _renewals(wish: Wish, place: Place, journals: Journals) -> list[DiskWrite]:
    return [one for one in journals[place[0]] if one.operation == wish.operation]


def _was_true(wish: Wish, target: TargetView, journal: Sequence[DiskWrite]) -> bool:
    """Whether the disk was as wished at some moment between the wish and the success."""
    told_at = datetime.fromisoformat(target.changed_at)
    if wish.must_renew:
        return any(one.operation == wish.operation and one.at <= told_at for one in journal)
    return any(_fits(wish, uri) for uri in _between(wish, journal, told_at))


def _between(wish: Wish, journal: Sequence[DiskWrite], until: datetime) -> Iterator[str | None]:
    """Return what was installed between the wish and its reported fulfilment."""
    mine = [one for one in journal if one.backend == wish.backend and one.at <= until]
    before = [one for one in mine if one.at < wish.asked_at]
    yield before[-1].uri or None if before else None
    for one in mine[len(before) :]:
        yield one.uri or None
