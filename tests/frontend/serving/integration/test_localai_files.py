"""Files of models on their way to the file server of LocalAI's worker, whatever was left on its disk before."""

import os
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Final

import pytest

from corral.base.clock import SystemClock
from corral.base.ids import NodeId
from corral.files.file_peer import FilePeer
from corral.frontend.models.local_files import LocalFiles
from corral.frontend.serving.staging.http_carrier import HttpCarrier
from corral.frontend.serving.staging.service import Staging, StagingWatch
from tests.kit.localai_files import digest_of, finished_note, localai_files, target_note

CONTENT: Final = os.urandom(200_000)
OTHER: Final = os.urandom(200_000)
RIGHT: Final = digest_of(CONTENT)
WRONG: Final = digest_of(OTHER)


def left(content: bytes, *, finished: str = "", target: str = "", is_stale: bool = False) -> Callable[[Path], None]:
    """What is on the disk: a file, and the notes beside it. A stale note is older than its file."""

    def make(file: Path) -> None:
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
        if finished:
            finished_note(file).write_text(finished)
        if target:
            target_note(file).write_text(target)
        if is_stale:
            os.utime(finished_note(file), (1, 1))

    return make


LEFT: Final = {
    "nothing": lambda _: None,
    "the file": left(CONTENT, finished=RIGHT),
    "the file without a note": left(CONTENT),
    "the file with a stale note": left(CONTENT, finished=RIGHT, is_stale=True),
    "the file with a stale note of another": left(CONTENT, finished=WRONG, is_stale=True),
    "another file": left(OTHER, finished=WRONG),
    "another file without a note": left(OTHER),
    "another file with a stale note of this one": left(OTHER, finished=RIGHT, is_stale=True),
    "a shorter file with a stale note of this one": left(CONTENT[:1000], finished=RIGHT, is_stale=True),
    "an empty file with a stale note of this one": left(b"", finished=RIGHT, is_stale=True),
    "a shorter file with a note of this one": left(CONTENT[:1000], finished=RIGHT),
    "a part": left(CONTENT[:1000], target=RIGHT),
    "a part of another": left(OTHER[:1000], target=WRONG),
    "a part of another that calls itself this one": left(OTHER[:1000], target=RIGHT),
    "a part without a note": left(CONTENT[:1000]),
    "an empty part": left(b"", target=RIGHT),
    "a whole part": left(CONTENT, target=RIGHT),
    "a whole part of another": left(OTHER, target=WRONG),
    "too large a part": left(CONTENT + b"x", target=RIGHT),
    "a part with a note of this one": left(CONTENT[:1000], target=RIGHT, finished=RIGHT),
    "a part of another with a note of this one": left(OTHER[:1000], target=WRONG, finished=RIGHT),
}


async def brought(root: Path, model: str, weights: str) -> PurePath | None:
    """What is the models directory of the node `node`, once it has the weights of the directory `frontend`."""
    models = root / "frontend"
    async with localai_files(root / "node") as server:

        async def file_server(_: NodeId) -> FilePeer:
            return FilePeer(address=f"127.0.0.1:{server.port}", token="t", patience_seconds=3)

        files = LocalFiles(models)
        staging = Staging(models, files, [HttpCarrier(files, file_server)])
        fields = {"ModelFile": str(models / weights), "ModelPath": str(models)}
        return await staging.bring(model, fields, NodeId("n"), StagingWatch(SystemClock()))


@pytest.mark.parametrize("before", LEFT.values(), ids=LEFT)
async def test_a_localai_worker_has_the_file_in_the_end(before: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "frontend").mkdir()
    (tmp_path / "frontend" / "weights.gguf").write_bytes(CONTENT)
    file = tmp_path / "node" / "m" / "weights.gguf"
    before(file)

    assert await brought(tmp_path, "m", "weights.gguf") == tmp_path / "node" / "m"
    assert file.read_bytes() == CONTENT


@pytest.mark.parametrize("model", ["qwen:7b", "org/name", "a b", "50%20", "größe", "模型", "a+b?c=d&e", "a;b,c", "[x]"])
async def test_a_directory_arrives_whatever_its_files_and_its_model_are_called(model: str, tmp_path: Path) -> None:
    weights = tmp_path / "frontend" / "repo" / "snap shot"
    names = [
        "config.json",
        "empty",
        "a b",
        "100%",
        "%41",
        "#1",
        "a?b",
        "ü",
        "模型.bin",
        "a+b",
        "x;y",
        ".hidden",
        "c:\\d",
    ]
    for folder in (weights, weights / "sub%2Fdir"):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_bytes(b"" if name == "empty" else name.encode())

    base = await brought(tmp_path, model, "repo/snap shot")

    assert base == tmp_path / "node" / model
    for folder in ("repo/snap shot", "repo/snap shot/sub%2Fdir"):
        here, there = tmp_path / "frontend" / folder, tmp_path / "node" / model / folder
        assert {file.name: file.read_bytes() for file in here.iterdir() if file.is_file()} == {
            file.name: file.read_bytes() for file in there.iterdir() if file.is_file() and file.suffix != ".sha256"
        }
