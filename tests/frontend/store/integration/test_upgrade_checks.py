"""What was last found to be offered, on both databases."""

from corral.frontend.backends.decide.upgrades import Check, Offer
from corral.frontend.backends.store import UpgradeChecks
from corral.frontend.store.db import Database
from tests.kit.samples import after

OFFER = Offer(backend="a", uri="r/a", version="1", digest="d", member_digests=frozenset({"m", "n"}), looked_at=after(1))


async def test_the_newest_check_is_kept_whole(database: Database) -> None:
    checks = UpgradeChecks(database)
    assert await checks.last() is None
    first = Check(at=after(2), offers=(OFFER, Offer(backend="b", uri="r/b", is_external=True)), problem="away")
    assert await checks.put(first)
    assert await checks.last() == first
    assert not await checks.put(Check(at=after(1)))
    assert await checks.last() == first
    assert await checks.put(Check(at=after(3)))
    assert await checks.last() == Check(at=after(3))
