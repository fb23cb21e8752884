"""The images that a checkout's set-up makes of Corral's own backends: they are what a worker would install and run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from corral.base.clock import SystemClock
from corral.base.processes import ChildCommand, Output, start_process
from corral.galleries.gallery import GallerySource
from corral.galleries.index_document import BACKENDS, LocalIndexes
from corral.galleries.places import read_place
from corral.oci.manifests import this_platform
from corral.oci.orders import PullOrder, Scale
from corral.oci.pull import Pull
from corral.rpc.backend import Backend
from corral.rpc.messages import ModelOptions, PredictOptions
from tests.kit.backends import SOON, TOKEN, until_healthy
from tests.kit.images import own_gallery
from tests.kit.models import chat_model
from tests.kit.ports import lasting_port

PYTHON = Path(sys.base_prefix) / "bin"
"""Where the interpreter is that `.venv` was made with; it has none of the packages."""


async def install(name: str, folder: Path) -> Path:
    """As a worker does it: look the build up in the gallery, and unpack its image."""
    source = GallerySource(name="own", url=own_gallery().as_uri())
    gallery = LocalIndexes(BACKENDS, 2**20).read(read_place(source.url), source)
    [entry] = [entry for entry in gallery.entries if entry.name == name]
    target = folder / name
    order = PullOrder(
        sources=(entry.artefact,), target=str(target), cache=str(folder / "cache"), platform=this_platform()
    )
    await Pull(order, scale=Scale(), clock=SystemClock()).run()
    return target


def a_model(name: str) -> ModelOptions:
    if name == "echo":
        return ModelOptions(Model="none")
    return ModelOptions(Model="a-model", ModelFile=str(chat_model()), ContextSize=256, Threads=1)


@pytest.mark.parametrize("name", ["echo", "cpu-llama-cpp"])
async def test_an_image_runs_with_nothing_but_a_python(name: str, tmp_path: Path) -> None:
    home = await install(name, tmp_path)
    address = f"127.0.0.1:{lasting_port()}"
    environment = {"PATH": f"{PYTHON}:{os.defpath}", "LOCALAI_GRPC_AUTH_TOKEN": TOKEN}
    command = ChildCommand(argv=["./run.sh", "--addr", address], env=environment, cwd=home, output=Output.TAIL)

    async with start_process(command) as process, Backend(address, token=TOKEN) as client:
        await until_healthy(client, process)
        await client.load(a_model(name), timeout=SOON)
        reply = await client.predict(PredictOptions(Prompt="Hello", Tokens=4))
        process.terminate()
        await process.wait()

    assert reply.message


async def test_an_image_without_a_fitting_python_says_which_it_needs(tmp_path: Path) -> None:
    home = await install("echo", tmp_path)
    (home / "packages" / f"{sys.version_info[0]}.{sys.version_info[1]}").rename(home / "packages" / "3.99")
    command = ChildCommand(
        argv=["./run.sh", "--addr", "127.0.0.1:0"],
        env={"PATH": f"{PYTHON}:{os.defpath}"},
        cwd=home,
        output=Output.TAIL,
    )

    async with start_process(command) as process:
        assert await process.wait() == 1

    assert process.tail[0].startswith("echo needs Python 3.99, for which its packages were made. Put one on the PATH")
    assert str(home / "python") in process.tail[1]


def test_a_backend_runs_until_it_is_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "corral", "backend", "run", "echo"]
    environment = {"PATH": os.defpath, "HOME": str(tmp_path)}
    with (
        (tmp_path / "errors").open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True) as ran,
    ):
        assert ran.stdout is not None
        try:
            said = ran.stdout.readline()
        finally:
            ran.send_signal(signal.SIGINT)
        rest = ran.stdout.read()
        ran.wait(timeout=90)

    log = (tmp_path / "errors").read_text()
    assert said.startswith("echo serves gRPC at 127.0.0.1:"), log
    assert "with the token" in said
    assert rest == "Ctrl-C ends it.\n"
    assert ran.returncode == 0
    assert "echo ends" in log
