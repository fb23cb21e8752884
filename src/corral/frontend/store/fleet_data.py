"""Whether a data directory and a database belong to the same fleet: found out before either of them is written to.

An empty database beside the keys of a fleet was lost, or its setting is wrong. Starting on it would make a new fleet,
whose nodes, keys and models nobody knows: so that is refused unless a person asks for a new fleet.
"""

from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from corral.base.errors import FleetMismatch
from corral.base.ids import new_secret
from corral.base.private_files import read_private, write_private
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.frontend.store.db import Database
from corral.frontend.store.engines import sqlite_path
from corral.frontend.store.schema_version import has_schema
from corral.frontend.store.secrets import Secrets, was_sealed

FLEET_FILE: Final = "fleet.json"
"""In the data directory: the id of the fleet that it belongs to."""
_SECRETS_KEY: Final = "secrets.key"
_FLEET_ID: Final = "fleet-id"


class FleetMark(msgspec.Struct, kw_only=True):
    id: str


class FleetData(msgspec.Struct, frozen=True, kw_only=True):
    """A data directory, as far as it tells that a fleet was there."""

    directory: Path
    credentials: tuple[Path, ...]
    database: str
    """URL of the database."""
    may_be_new: bool = False
    """A person asked for a new fleet."""

    def expect_file(self) -> None:
        """Refuse to make an SQLite file where one is missing: nothing is left behind by the refusal."""
        file = sqlite_path(self.database)
        if file is not None and (not file.exists() or file.stat().st_size == 0):
            self._refuse(f"the database {file} is {'empty' if file.exists() else 'missing'}", self._remains(file))

    async def expect(self, database: Database) -> None:
        """Refuse a database that has nothing of the fleet whose keys are here. Call it before the migrations."""
        if not await has_schema(database):
            self._refuse("the database is empty", self._remains(None))
        elif self._known_id() is not None and not await was_sealed(database):
            self._refuse("the database has no fleet in it", [self._file])

    async def confirm(self, secrets: Secrets, *, at: datetime) -> None:
        """Write into the database and here that they belong together. FleetMismatch: they do not."""
        known_id = self._known_id()
        stored = await secrets.put_if_absent(_FLEET_ID, known_id or new_secret(), at=at)
        if known_id == stored:
            return
        if known_id is not None:
            raise FleetMismatch(
                f"the data directory {self.directory} belongs to another fleet than the database: correct the setting"
                f" data or database. To use this directory for the fleet of the database, remove {self._file}"
            )
        write_private(self._file, msgspec.json.encode(FleetMark(id=stored)) + b"\n")

    @property
    def _file(self) -> Path:
        return self.directory / FLEET_FILE

    def _known_id(self) -> str | None:
        content = read_private(self._file)
        if content is None:
            return None
        try:
            return msgspec.json.decode(content, type=FleetMark).id
        except UNREADABLE_JSON:
            return None

    def _remains(self, file: Path | None) -> list[Path]:
        log = [] if file is None else [file.with_name(f"{file.name}-wal")]
        paths = [self._file, self.directory / _SECRETS_KEY, *self.credentials, *log]
        return [path for path in paths if path.exists()]

    def _refuse(self, problem: str, remains: list[Path]) -> None:
        if not remains:
            return
        if self.may_be_new:
            self._file.unlink(missing_ok=True)  # the new fleet gets an id of its own
            return
        names = ", ".join(path.name for path in remains)
        raise FleetMismatch(
            f"{problem}, but {self.directory} has {names} of a fleet: put back a backup of the database, or correct"
            " the setting database. Only to give that fleet up, with its nodes, keys and models: start with --new-fleet"
        )
