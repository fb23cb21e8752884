"""All that may be presented to gateways at one moment: API keys, and sessions of the web page."""

from collections.abc import Sequence
from datetime import datetime

from corral.frontend.access.decide import SET_KEYS, Session
from corral.frontend.access.store.keys import Keys
from corral.frontend.access.store.sessions import SessionStore
from corral.wire.keys import LIMITED_INFERENCE, ApiKey, Scope, hash_secret
from corral.wire.sessions import SESSION_SCOPE
from corral.wire.view import KeyEntry


class Proofs:
    def __init__(self, keys: Keys, sessions: SessionStore, *, admin_keys: Sequence[str]) -> None:
        """`admin_keys`: those that are set, beside those that are stored."""
        self._keys = keys
        self._sessions = sessions
        self._admin_keys = admin_keys

    async def entries(self, now: datetime) -> dict[str, KeyEntry]:
        """The key entries of the view for gateways, by hash. They include keys without access to models, so that these
        are refused with the right reason instead of as unknown keys."""
        sessions = {session.id: session for session in await self._sessions.valid(now)}
        keys = [
            key
            for key in await self._keys.valid(now)
            if key.is_valid(now) and (key.session_id is None or key.session_id in sessions)
        ]
        set_keys = [
            KeyEntry(hash=hash, id=SET_KEYS, scopes=(Scope.ADMIN,)) for hash in map(hash_secret, self._admin_keys)
        ]
        entries = [*map(_entry, keys), *map(_session_entry, sessions.values()), *set_keys]
        return {entry.hash: entry for entry in entries}


def _entry(key: ApiKey) -> KeyEntry:
    return KeyEntry(
        hash=key.hash,
        id=key.id,
        scopes=tuple(sorted(key.scopes)) if key.models is None else (LIMITED_INFERENCE,),
        models=key.models,
        expires_at=None if key.expires_at is None else key.expires_at.timestamp(),
    )


def _session_entry(session: Session) -> KeyEntry:
    return KeyEntry(
        hash=session.hash, id=session.id, scopes=(SESSION_SCOPE,), expires_at=session.expires_at.timestamp()
    )
