"""The backend of `docs/guides/write-a-backend.md`, made from the very text of the guide."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from corral.base.processes import ChildCommand, Output, start_process
from corral.rpc.backend import Backend
from corral.rpc.errors import BackendError
from corral.rpc.messages import ModelOptions, PredictOptions
from tests.kit.backends import BACKENDS, SOON, TOKEN, until_healthy
from tests.kit.ports import lasting_port

GUIDE = BACKENDS.parent / "docs" / "guides" / "write-a-backend.md"


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None, language
    return found[1]


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    (tmp_path / "backend.py").write_text(block("python"))
    (tmp_path / "run.sh").write_text(block("sh"))
    (tmp_path / "run.sh").chmod(0o755)
    shutil.copytree(BACKENDS / "sdk", tmp_path / "sdk")
    return tmp_path


async def test_the_backend_of_the_guide_works(mirror: Path) -> None:
    address = f"127.0.0.1:{lasting_port()}"
    environment = {"PATH": "/usr/bin:/bin", "CORRAL_BACKEND_PYTHON": sys.executable, "LOCALAI_GRPC_AUTH_TOKEN": TOKEN}
    command = ChildCommand(argv=["./run.sh", "--addr", address], env=environment, cwd=mirror, output=Output.TAIL)
    async with start_process(command) as process, Backend(address, token=TOKEN) as client:
        await until_healthy(client, process)
        with pytest.raises(BackendError, match="pause is not a number: long"):
            await client.load(ModelOptions(Model="none", Options=["pause:long"]), timeout=SOON)
        await client.load(ModelOptions(Model="none", Options=["pause:0.001"]), timeout=SOON)
        request = PredictOptions(Prompt="Hello!")
        answer = b"".join([reply.message async for batch in client.predict_stream(request) for reply in batch])
        assert answer == b"!olleH"
        process.terminate()
        assert await process.wait() == 0
