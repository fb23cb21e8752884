"""The fleet vouches for the certificates that its frontends show, and not for ever for those that they showed."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from corral.base.tls_keys import public_key_hash
from corral.frontend.nodes.fleet_key import FleetKey
from tests.kit.certificates import Authority


async def test_a_replaced_certificate_is_vouched_for_during_an_hour(tmp_path: Path) -> None:
    now, file = datetime(2026, 11, 17, tzinfo=UTC), tmp_path / "shown.pem"
    authority = Authority(tmp_path / "authority")
    old, new = (authority.issue(name)[0].read_bytes() for name in ("old", "new"))
    fleet = FleetKey(Ed25519PrivateKey.generate(), [file], public_key_hash)

    async def vouched(minutes: int) -> list[str]:
        return list((await fleet.prove("n" * 32, at=now + timedelta(minutes=minutes))).certificates)

    file.write_bytes(old)
    [first] = await vouched(0)
    file.write_bytes(new)
    both = await vouched(60)
    assert len(both) == 2
    [second] = await vouched(61)
    assert {first, second} == set(both)
    file.unlink()  # what cannot be read was not replaced
    assert await vouched(600) == [second]
