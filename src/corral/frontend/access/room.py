"""Builds access: who is calling, the keys that administrators make, and users."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from corral.frontend.access.decide import LoginPolicy
from corral.frontend.access.keys import KeyAudience, KeyRing
from corral.frontend.access.principals import Authenticator
from corral.frontend.access.sealing import SealingKeys
from corral.frontend.access.store.keys import Keys
from corral.frontend.access.store.users import Users
from corral.frontend.access.users import UserAccounts
from corral.frontend.record.room import Foundation, RecordRoom


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRoom:
    authenticator: Authenticator
    key_ring: KeyRing
    users: UserAccounts
    sealing: SealingKeys

    @classmethod
    def build(  # noqa: PLR0913 - each is a collaborator or a setting
        cls,
        foundation: Foundation,
        record: RecordRoom,
        *,
        audience: KeyAudience,
        registration_token: str,
        joins_by_token: bool,
        trusted_token: str,
        gateway_key: str,
        admin_keys: Sequence[str],
        logins: LoginPolicy,
        sealing: SealingKeys,
    ) -> Self:
        """`audience` knows whether the gateways have heard of a key."""
        keys, clock, has_set_admins = Keys(foundation.database), foundation.clock, bool(admin_keys)
        key_ring = KeyRing(keys, record.feed, clock, audience=audience, has_set_admins=has_set_admins)
        return cls(
            authenticator=Authenticator(
                keys,
                clock,
                registration_token=registration_token,
                joins_by_token=joins_by_token,
                trusted_token=trusted_token,
                gateway_key=gateway_key,
                admin_keys=admin_keys,
            ),
            key_ring=key_ring,
            users=UserAccounts(
                Users(foundation.database), key_ring, record.feed, clock, logins, has_set_admins=has_set_admins
            ),
            sealing=sealing,
        )
