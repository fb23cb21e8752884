"""A file server for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit.file_worker import FileWorker, open_file_worker


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[FileWorker]:
    async with open_file_worker(tmp_path / "node") as worker:
        yield worker
