"""Where sounds lie between adapter and backend, and how they are sent."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from corral.adapter.responses import error_response, stream_sound
from corral.adapter.scratch import Scratch, ScratchNotUsable, disk_errors, read_parts, size_of
from corral.rpc.errors import BackendFailed


def names_in(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


async def test_each_request_has_a_private_directory_that_ends_with_it(tmp_path: Path) -> None:
    async with Scratch(tmp_path) as scratch:
        assert names_in(tmp_path) == set(), "made when it is first needed"
        async with scratch.folder() as one, scratch.folder() as other:
            assert one != other
            assert one.parent == other.parent
            assert (one.parent.stat().st_mode & 0o077, one.stat().st_mode & 0o077) == (0, 0)
            (one / "sound.wav").write_bytes(b"x")
        assert names_in(one.parent) == {".lock"}
    assert names_in(tmp_path) == set()


async def test_first_requests_at_once_share_a_directory(tmp_path: Path) -> None:
    async def use(scratch: Scratch) -> None:
        async with scratch.folder() as folder:
            assert folder.is_dir()

    async with Scratch(tmp_path) as scratch:
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(use(scratch))
        assert len(names_in(tmp_path)) == 1


async def test_what_the_dead_left_is_removed_and_the_livings_is_not(tmp_path: Path) -> None:
    dead = tmp_path / "corral-adapter-dead"
    for folder in (dead, tmp_path / "another", tmp_path / "corral-adapter-being-made"):
        (folder / "deep").mkdir(parents=True)
    (dead / ".lock").touch()
    (tmp_path / "corral-adapter-link").symlink_to(tmp_path / "another")
    async with Scratch(tmp_path) as living, living.folder() as kept, Scratch(tmp_path) as scratch, scratch.folder():
        assert kept.is_dir()
    assert names_in(tmp_path) == {"another", "corral-adapter-being-made", "corral-adapter-link"}
    assert names_in(tmp_path / "another") == {"deep"}


async def test_a_directory_that_was_cleaned_away_is_made_again(tmp_path: Path) -> None:
    async with Scratch(tmp_path) as scratch:
        async with scratch.folder() as folder:
            pass
        (folder.parent / ".lock").unlink()
        folder.parent.rmdir()
        async with scratch.folder() as folder:
            assert folder.is_dir()


async def test_no_room_is_told_and_is_not_the_clients_fault(tmp_path: Path) -> None:
    async with Scratch(tmp_path / "missing") as scratch:
        with pytest.raises(ScratchNotUsable, match="No such file or directory"):
            async with scratch.folder():
                pass
    with pytest.raises(ScratchNotUsable, match="No space left on device") as refused, disk_errors():
        raise OSError(28, "No space left on device")
    assert error_response(refused.value).status == 507


async def test_a_file_that_is_not_there_has_no_parts_and_a_link_is_not_followed(tmp_path: Path) -> None:
    assert [part async for part in read_parts(tmp_path / "none")] == []
    assert size_of(tmp_path / "none") == 0
    (tmp_path / "real").write_bytes(b"x" * 300_000)
    assert [len(part) async for part in read_parts(tmp_path / "real")] == [262_144, 37_856]
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert (size_of(tmp_path / "real"), size_of(tmp_path / "link")) == (300_000, 0)
    with pytest.raises(ScratchNotUsable):
        assert [part async for part in read_parts(tmp_path / "link")]


async def test_a_sound_that_breaks_off_breaks_the_connection() -> None:
    async def sound() -> AsyncGenerator[bytes, None]:
        yield b"RIFF"
        raise BackendFailed("127.0.0.1:1", "told to fail")

    async def handle(request: web.Request) -> web.StreamResponse:
        return await stream_sound(request, sound(), {"Content-Type": "audio/wav"})

    app = web.Application()
    app.router.add_get("/", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}/") as answer:
            assert answer.status == 200
            with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientOSError)):
                await answer.read()
    finally:
        await runner.cleanup()
