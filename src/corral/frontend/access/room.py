"""Builds access: who is calling, the keys that administrators make, users, and their sessions."""

from collections.abc import Sequence
from typing import Self

import msgspec

from corral.frontend.access.decide import LoginPolicy
from corral.frontend.access.keys import KeyAudience, KeyRing, KeyUse
from corral.frontend.access.passwords import GuessLimits
from corral.frontend.access.principals import Authenticator
from corral.frontend.access.refused_logins import RefusedLogins
from corral.frontend.access.sealing import SealingKeys
from corral.frontend.access.sessions import KeyGuesses, Sessions
from corral.frontend.access.store.keys import Keys
from corral.frontend.access.store.sessions import SessionStore
from corral.frontend.access.store.users import Users
from corral.frontend.access.users import UserAccounts
from corral.frontend.record.room import Foundation, Loop, RecordRoom
from corral.wire.keys import hash_secret


class AccessRoom(msgspec.Struct, frozen=True, kw_only=True):
    authenticator: Authenticator
    key_ring: KeyRing
    key_use: KeyUse
    users: UserAccounts
    sessions: Sessions
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
        database, clock, has_set_admins = foundation.database, foundation.clock, bool(admin_keys)
        keys = Keys(database)
        use = KeyUse(keys, clock)
        session_store = SessionStore(database, set_keys=[hash_secret(key) for key in admin_keys])
        key_ring = KeyRing(keys, record.feed, clock, audience=audience, has_set_admins=has_set_admins)
        authenticator = Authenticator(
            keys,
            session_store,
            clock,
            use,
            registration_token=registration_token,
            joins_by_token=joins_by_token,
            trusted_token=trusted_token,
            gateway_key=gateway_key,
            admin_keys=admin_keys,
        )
        guesses, refused = GuessLimits(), RefusedLogins(record.events, record.feed, clock)
        users = UserAccounts(
            Users(database),
            key_ring,
            record.feed,
            clock,
            logins,
            guesses=guesses,
            refused=refused,
            has_set_admins=has_set_admins,
        )
        key_guesses = KeyGuesses(authenticator, guesses, refused, clock)
        sessions = Sessions(session_store, users, key_guesses, record.feed, clock, audience=audience, policy=logins)
        return cls(
            authenticator=authenticator, key_ring=key_ring, key_use=use, users=users, sessions=sessions, sealing=sealing
        )

    def loops(self, record: RecordRoom) -> dict[str, Loop]:
        return self.sealing.loops(record) | self.key_use.loops(record)
