"""Servers that are started once for all tests that need them."""

import asyncio
from collections.abc import Iterator

import pytest

from corral.files.s3 import S3Objects
from corral.files.storage import ObjectMissing
from tests.kit.s3 import S3Server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A real S3 server. The client's own threads start with its first call and stay: that is no test's doing."""

    async def first_call() -> None:
        with pytest.raises(ObjectMissing):
            await S3Objects(server.config()).look("nothing")

    with S3Server() as server:
        asyncio.run(first_call())
        yield server
