"""Backends as processes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit.backends import RunningBackend, running_backend
from tests.kit.models import chat_model


@pytest.fixture
async def echo() -> AsyncIterator[RunningBackend]:
    """Ready, without a model."""
    async with running_backend("echo") as backend:
        yield backend


@pytest.fixture(scope="session")
def chat_model_file() -> Path:
    return chat_model()
