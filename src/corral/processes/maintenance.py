"""What commands do on the machine of a frontend, in its database itself. The frontend may run meanwhile."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from corral.base.clock import SystemClock
from corral.base.errors import PathNotUsable
from corral.base.ids import new_frontend_id
from corral.frontend.access.keys import FirstKeys
from corral.frontend.access.sealing import RotationOutcome, SealingKeys, change_key
from corral.frontend.access.store.keys import Keys
from corral.frontend.config import ControlConfig
from corral.frontend.store.db import Database
from corral.frontend.store.rotation import KeyRotation
from corral.frontend.store.secrets import Secrets, SecretsKey
from corral.processes.control_data import fleet_data, load_secrets_key, migrate

NEXT_KEY_FILE: Final = "secrets.key.next"
"""In the data directory: the next secrets key, for people to put into settings."""
KEY_BEFORE_FILE: Final = "secrets.key.before"
"""In the data directory, where a person wants it: the key before, which opens backups from before."""
_BY: Final = "a person on the machine"


@asynccontextmanager
async def _opened(config: ControlConfig) -> AsyncIterator[tuple[Database, Secrets]]:
    fleet = fleet_data(config)
    fleet.expect_file()
    database = await Database.open(config.database_url, lock=False)
    try:
        await fleet.expect(database)
        await migrate(database)
        key = await load_secrets_key(config, database)
        yield database, await Secrets.open(database, key, at=SystemClock().now())
    finally:
        await database.close()


async def reset_admin_key(config: ControlConfig) -> str:
    """Mint an administrator key directly in the database, and revoke the one that was lost."""
    async with _opened(config) as (database, secrets):
        first_keys = FirstKeys(Keys(database), secrets, SystemClock().now)
        new = await first_keys.reset_admin(by="reset on the machine")
        if config.credentials_file is not None:
            await first_keys.keep(config.credentials_file, new.key)
        return new.key


async def rotate_secrets_key(
    config: ControlConfig, *, discard: bool = False, keep_before: bool = False
) -> RotationOutcome:
    """Seal everything with a new key. The key is kept where it comes from: in the key file, or where it comes from a
    setting, in a file for people, until the frontends have it. `discard` removes what neither key opens."""
    clock, for_people = SystemClock(), config.data / NEXT_KEY_FILE
    async with _opened(config) as (database, secrets):
        following = key_for_people(for_people, secrets) if config.secrets_key else SecretsKey.generate()
        rotation = KeyRotation(database, secrets)
        file = None if config.secrets_key else config.secrets_key_file
        if keep_before:
            _keep_before(secrets.before, config.data / KEY_BEFORE_FILE)
        sealing_keys = SealingKeys(secrets, rotation, clock, id=new_frontend_id(), file=file)
        try:
            outcome = await change_key(rotation, clock, sealing_keys, following=following, by=_BY, discard=discard)
        finally:
            await sealing_keys.leave()
        if (key := await secrets.look_for_change()) is not None:
            key.keep(for_people)  # that of a change which was begun elsewhere, perhaps
        else:
            for_people.unlink(missing_ok=True)
    return outcome


def key_for_people(file: Path, secrets: Secrets) -> SecretsKey:
    """The next key, which people put into settings: that of the file, which is made if need be. The key of a change
    that is over is replaced, where the command was killed before it removed the file: nothing would change."""
    if not secrets.change and SecretsKey.load_or_create(file) == secrets.current:
        file.unlink()
    return SecretsKey.load_or_create(file)


def _keep_before(key: SecretsKey, path: Path) -> None:
    """Never over another key: backups may need that one."""
    if path.exists() and SecretsKey.load_or_create(path) != key:
        raise PathNotUsable(f"{path} holds an earlier key, which older backups may need; move it away and try again")
    key.keep(path)
