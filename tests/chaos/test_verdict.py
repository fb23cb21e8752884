"""The judge of the kill matrix finds everything that it is there to find."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from chaos import verdict
from chaos.people import Ledger, Wish
from chaos.workers import WorkerState
from corral.frontend.operations.decide.intent import Verb
from corral.wire.go_json import format_time
from corral.wire.operation_views import OperationView, TargetView
from tests.kit.simulated_backends import DiskWrite

START = datetime(2030, 1, 1, tzinfo=UTC)
ASKED, DONE, TOLD = (START + timedelta(seconds=seconds) for seconds in (1, 2, 3))
INSTALL = Wish(
    operation="op", verb=Verb.INSTALL, backend="echo", uri="", must_renew=False, asked_at=ASKED, nodes=["n1"]
)
DELETE = replace(INSTALL, verb=Verb.DELETE)
REINSTALL = replace(INSTALL, must_renew=True)
DOWNLOAD = DiskWrite(at=DONE, backend="echo", uri="oci://gallery/echo", operation="op")
EARLIER = replace(DOWNLOAD, at=START, operation="earlier")
REMOVAL = DiskWrite(at=DONE, backend="echo")


def ledger(wish: Wish) -> Ledger:
    known = Ledger()
    known.note(wish)
    return known


def worker(*journal: DiskWrite) -> WorkerState:
    disk = {one.backend: one.uri for one in journal if one.uri}
    if journal and not journal[-1].uri:
        del disk[journal[-1].backend]
    return WorkerState(
        name="w", node_id="n1", is_corral=True, disk=disk, journal=list(journal), requests=[], returned_at=None
    )


def operation(status: str = "success", *, id: str = "op", node: str = "n1") -> OperationView:
    target = TargetView(
        node_id=node,
        node_name="w",
        backend="echo",
        status=status,
        waits_for_node=False,
        message="",
        attempts=0,
        changed_at=format_time(TOLD),
        percentage=0,
    )
    return OperationView(
        id=id,
        verb="install",
        backend="echo",
        uri="",
        state="done",
        progress=0,
        asked_by="",
        accepted_at=format_time(ASKED),
        changed_at=format_time(TOLD),
        counts={},
        targets=[target],
    )


TRUE = [
    (INSTALL, [DOWNLOAD]),
    (INSTALL, [EARLIER]),
    (DELETE, []),
    (DELETE, [EARLIER, REMOVAL]),
    (REINSTALL, [DOWNLOAD]),
]
FALSE = [
    (INSTALL, []),
    (INSTALL, [replace(EARLIER, at=START), replace(REMOVAL, at=START)]),
    (replace(INSTALL, uri="oci://other"), [DOWNLOAD]),
    (DELETE, [EARLIER]),
    (REINSTALL, [EARLIER]),
]


@pytest.mark.parametrize(("wish", "journal"), TRUE)
def test_what_is_as_wished_passes(wish: Wish, journal: list[DiskWrite]) -> None:
    assert verdict.all_is_as_it_was_last_wished(ledger(wish), [worker(*journal)]) == 1
    assert verdict.no_success_without_proof(ledger(wish), [operation()], [worker(*journal)]) == 1


@pytest.mark.parametrize(("wish", "journal"), FALSE)
def test_what_is_not_as_wished_is_found(wish: Wish, journal: list[DiskWrite]) -> None:
    with pytest.raises(AssertionError):
        verdict.all_is_as_it_was_last_wished(ledger(wish), [worker(*journal)])
    with pytest.raises(AssertionError, match="no proof"):
        verdict.no_success_without_proof(ledger(wish), [operation()], [worker(*journal)])


def test_what_became_true_only_after_it_was_told_is_no_proof() -> None:
    late = replace(DOWNLOAD, at=TOLD + timedelta(seconds=1))
    with pytest.raises(AssertionError, match="no proof"):
        verdict.no_success_without_proof(ledger(INSTALL), [operation()], [worker(late)])


def test_of_what_was_taken_back_nothing_is_expected() -> None:
    known = ledger(INSTALL)
    known.cancelled.add(("op", "n1"))
    assert verdict.all_is_as_it_was_last_wished(known, [worker()]) == 0


@pytest.mark.parametrize("history", [[], [operation(node="n2")], [operation(), operation(id="other")]])
def test_what_was_lost_changed_or_invented_is_found(history: list[OperationView]) -> None:
    with pytest.raises(AssertionError):
        verdict.nothing_was_lost_or_invented(ledger(INSTALL), history)


def test_what_was_shown_and_downloaded_again_is_found() -> None:
    verdict.nothing_proven_was_downloaded_again([worker(DOWNLOAD)])
    with pytest.raises(AssertionError, match="w had to download again"):
        verdict.nothing_proven_was_downloaded_again([worker(DOWNLOAD, replace(DOWNLOAD, is_repeated=True))])
