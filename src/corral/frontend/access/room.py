"""Builds access: who is calling, and the keys that administrators make."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from corral.frontend.access.keys import KeyAudience, KeyRing
from corral.frontend.access.principals import Authenticator
from corral.frontend.access.store import Keys
from corral.frontend.record.room import Foundation, RecordRoom


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRoom:
    authenticator: Authenticator
    key_ring: KeyRing

    @classmethod
    def build(  # noqa: PLR0913 - each is a collaborator or a setting
        cls,
        foundation: Foundation,
        record: RecordRoom,
        *,
        audience: KeyAudience,
        registration_token: str,
        trusted_token: str,
        gateway_key: str,
        admin_keys: Sequence[str],
    ) -> Self:
        """`audience` knows whether the gateways have heard of a key."""
        keys, clock = Keys(foundation.database), foundation.clock
        return cls(
            authenticator=Authenticator(
                keys,
                clock,
                registration_token=registration_token,
                trusted_token=trusted_token,
                gateway_key=gateway_key,
                admin_keys=admin_keys,
            ),
            key_ring=KeyRing(keys, record.feed, clock, audience=audience, has_set_admins=bool(admin_keys)),
        )
