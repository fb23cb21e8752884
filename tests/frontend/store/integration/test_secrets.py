"""Sealed secrets on both databases."""

import asyncio

import pytest
from sqlalchemy import select, update

from corral.base.errors import SecretsKeyMismatch
from corral.frontend.store.db import Database
from corral.frontend.store.schema import secrets as secrets_table
from corral.frontend.store.secrets import Secrets, SecretsKey, discard
from tests.kit.samples import after


@pytest.fixture
def key() -> SecretsKey:
    return SecretsKey.generate()


@pytest.fixture
async def secrets(database: Database, key: SecretsKey) -> Secrets:
    return await Secrets.open(database, key, at=after(0))


async def test_a_secret_comes_back_as_it_was_put(secrets: Secrets) -> None:
    assert await secrets.put_if_absent("token", "pässwörd 🔑", at=after(0)) == "pässwörd 🔑"
    assert await secrets.get("token") == "pässwörd 🔑"
    assert await secrets.get("other") is None


async def test_of_several_who_put_a_secret_all_get_the_winners(secrets: Secrets) -> None:
    got = await asyncio.gather(*(secrets.put_if_absent("token", f"value {n}", at=after(0)) for n in range(6)))

    assert len(set(got)) == 1
    assert await secrets.get("token") == got[0]


async def test_a_secret_can_be_replaced_whether_or_not_there_was_one(secrets: Secrets) -> None:
    await secrets.replace("token", "old", at=after(0))
    await secrets.replace("token", "new", at=after(1))

    assert await secrets.get("token") == "new"


async def test_a_secret_can_be_deleted_once(database: Database, secrets: Secrets) -> None:
    await secrets.put_if_absent("token", "value", at=after(0))

    async with database.begin() as connection:
        assert await discard(connection, "token")
        assert not await discard(connection, "token")
    assert await secrets.get("token") is None


async def test_nothing_readable_is_stored_and_equal_values_look_different(database: Database, secrets: Secrets) -> None:
    await secrets.replace("one", "the same value", at=after(0))
    await secrets.replace("two", "the same value", at=after(0))
    async with database.read() as connection:
        sealed = (await connection.execute(select(secrets_table.c.sealed))).scalars().all()

    assert not any(b"same" in each for each in sealed)
    assert len(set(sealed)) == len(sealed) == 3


async def test_the_right_key_opens_again(database: Database, secrets: Secrets, key: SecretsKey) -> None:
    await secrets.replace("token", "value", at=after(0))
    again = await Secrets.open(database, SecretsKey.from_text(key.to_text()), at=after(9))

    assert await again.get("token") == "value"


async def test_a_wrong_key_is_refused_at_once_with_what_to_do(database: Database, secrets: Secrets) -> None:
    with pytest.raises(SecretsKeyMismatch) as refused:
        await Secrets.open(database, SecretsKey.generate(), at=after(1))

    assert "copy the secrets key file of another frontend" in refused.value.message
    assert "CORRAL_SECRETS_KEY" in refused.value.message


async def test_of_several_first_starts_with_own_keys_one_key_is_the_one(database: Database) -> None:
    keys = [SecretsKey.generate() for _ in range(4)]

    async def start(key: SecretsKey) -> bool:
        try:
            await Secrets.open(database, key, at=after(0))
        except SecretsKeyMismatch:
            return False
        return True

    assert (await asyncio.gather(*(start(key) for key in keys))).count(True) == 1


async def test_a_row_copied_under_another_name_does_not_open(database: Database, secrets: Secrets) -> None:
    await secrets.replace("low", "harmless", at=after(0))
    await secrets.replace("high", "powerful", at=after(0))
    async with database.begin() as connection:
        sealed = (
            await connection.execute(select(secrets_table.c.sealed).where(secrets_table.c.name == "low"))
        ).scalar_one()
        await connection.execute(update(secrets_table).where(secrets_table.c.name == "high").values(sealed=sealed))

    with pytest.raises(SecretsKeyMismatch):
        await secrets.get("high")
