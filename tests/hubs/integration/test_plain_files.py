"""Files behind URLs, and files and directories of this machine, become plans."""

import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml

from corral.base.errors import InvalidInput
from corral.hubs.access import HubAccess
from corral.hubs.choose import PullWish
from corral.hubs.config import HubsConfig
from corral.hubs.gguf import GgufKind
from corral.hubs.listings import HubModelMissing, HubRefused, HubUnavailable
from corral.hubs.plans import PlannedFile, PullPlan
from corral.hubs.references import parse_reference
from corral.hubs.remote_files import look_into_gguf
from corral.hubs.resolve import FIRST_MODEL, plan_file, plan_reference
from tests.kit.file_server import FileServer, answering, cutting, lying
from tests.kit.gguf import LLAMA, gguf

CHAT = gguf(**LLAMA, tokenizer__chat_template="{{ messages }}")
LONG = gguf(**LLAMA, tokenizer__chat_template="x", tokenizer__ggml__tokens=["word" * 20] * 100_000)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as server:
        yield server


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[HubAccess]:
    async with HubAccess.open(HubsConfig(first_model=tmp_path / "first-model.gguf")) as hub:
        yield hub


async def plan(hub: HubAccess, text: str, *, name: str = "") -> PullPlan:
    return await plan_reference(parse_reference(text), PullWish(text=text, name=name), hub)


async def test_a_url_becomes_a_model(server: FileServer, hub: HubAccess) -> None:
    url = server.add("/a/Some%20Model-Q4_K_M.gguf", CHAT)
    made = await plan(hub, url)
    assert (made.name, made.bytes) == ("some-model", len(CHAT))
    [file] = made.files
    assert (file.path, file.url, file.size) == ("some-model/Some Model-Q4_K_M.gguf", url, len(CHAT))


async def test_parts_behind_a_url_are_found(server: FileServer, hub: HubAccess) -> None:
    urls = [server.add(f"/big-0000{number}-of-00002.gguf", CHAT) for number in (1, 2)]
    for url in urls:
        made = await plan(hub, url)
        assert [file.url for file in made.files] == urls
        assert yaml.safe_load(made.config)["parameters"]["model"] == "big/big-00001-of-00002.gguf"


async def test_a_file_without_the_usual_name_is_known_by_its_content(server: FileServer, hub: HubAccess) -> None:
    made = await plan(hub, server.add("/download", CHAT))
    assert made.name == "a-llama"
    with pytest.raises(InvalidInput, match="page cannot be used: it does not begin like a GGUF file"):
        await plan(hub, server.add("/page", b"<html>"))


async def test_missing_refused_and_crowded_files_are_told_apart(server: FileServer, hub: HubAccess) -> None:
    with pytest.raises(HubModelMissing, match=r"has no x.gguf \(404\)"):
        await plan(hub, server.url("/x.gguf"))
    with pytest.raises(HubRefused, match=r"does not give y.gguf \(401\)"):
        await plan(hub, server.add("/y.gguf", CHAT, authorization="Bearer x"))
    url = server.add("/z.gguf", CHAT)
    server.faults["/z.gguf"] += [answering(503, retry_after="7")]
    with pytest.raises(HubUnavailable, match="asks to wait 7s"):
        await plan(hub, url)


async def test_a_long_header_is_read_by_few_ranges(server: FileServer, hub: HubAccess) -> None:
    assert len(LONG) > 8 << 20
    facts = await look_into_gguf(hub, PlannedFile(path="x", url=server.add("/x", LONG)))
    assert (facts.kind, facts.shape.vocabulary) == (GgufKind.CHAT, 100_000)
    assert len(server.requests) <= 4
    assert server.sent < len(LONG) + (4 << 20)


async def test_a_server_without_ranges_is_read_from_its_beginning(server: FileServer, hub: HubAccess) -> None:
    facts = await look_into_gguf(hub, PlannedFile(path="x", url=server.add("/x", LONG, has_ranges=False)))
    assert facts.shape.vocabulary == 100_000
    assert len(server.requests) <= 3


async def test_lies_about_ranges_are_noticed(server: FileServer, hub: HubAccess) -> None:
    planned = PlannedFile(path="x", url=server.add("/x", CHAT))
    server.faults["/x"] += [lying(content_range=f"bytes 5-9/{len(CHAT)}")]
    with pytest.raises(HubRefused, match="gives other bytes"):
        await look_into_gguf(hub, planned)
    server.faults["/x"] += [cutting(20)]
    with pytest.raises(HubUnavailable):
        await look_into_gguf(hub, planned)


async def test_a_file_or_a_directory_of_this_machine_becomes_a_model(tmp_path: Path, hub: HubAccess) -> None:
    folder = tmp_path / "My Model"
    folder.mkdir()
    (folder / "m-Q8_0.gguf").write_bytes(CHAT)
    (folder / "mmproj.gguf").write_bytes(gguf(general__architecture="clip"))
    made = await plan(hub, str(folder / "m-Q8_0.gguf"))
    assert [(file.path, file.url) for file in made.files] == [("m/m-Q8_0.gguf", (folder / "m-Q8_0.gguf").as_uri())]
    whole = await plan(hub, folder.as_uri())
    assert [file.path for file in whole.files] == ["my-model/m-Q8_0.gguf", "my-model/mmproj.gguf"]
    with pytest.raises(HubModelMissing, match="cannot be read: No such file"):
        await plan(hub, str(tmp_path / "none.gguf"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="neither GGUF files nor safetensors"):
        await plan(hub, str(tmp_path / "empty"))


async def test_the_first_model_is_the_one_of_the_setup(tmp_path: Path, hub: HubAccess) -> None:
    with pytest.raises(HubModelMissing, match="comes with the set-up is not there: `make setup`"):
        await plan_file(FIRST_MODEL, "m.gguf", "", hub)
    (tmp_path / "first-model.gguf").write_bytes(CHAT)
    sha256 = hashlib.sha256(CHAT).hexdigest()
    assert await plan_file(FIRST_MODEL, "m.gguf", sha256, hub) == PlannedFile(
        path="m.gguf", url=(tmp_path / "first-model.gguf").as_uri(), size=len(CHAT), digest=f"sha256:{sha256}"
    )


async def test_a_crowd_of_parts_is_refused(hub: HubAccess) -> None:
    with pytest.raises(InvalidInput, match="is one of 9999 parts; 200 are the most"):
        await plan(hub, "http://127.0.0.1:9/x-00001-of-09999.gguf")


async def test_a_file_is_measured_without_reading_it(server: FileServer, hub: HubAccess) -> None:
    for number, has_ranges in enumerate((True, False)):
        url = server.add(f"/x{number}.bin", bytes(1 << 20), has_ranges=has_ranges)
        assert (await plan_file(url, "x.bin", "", hub)).size == 1 << 20
    assert server.asked("/x0.bin")[0].sent == 1


async def test_files_of_gallery_entries_are_measured(server: FileServer, tmp_path: Path, hub: HubAccess) -> None:
    planned = await plan_file(server.add("/x.bin", b"12345"), "x.bin", "AB" * 32, hub)
    assert (planned.size, planned.digest) == (5, "sha256:" + "ab" * 32)
    (tmp_path / "y").write_bytes(b"1")
    assert (await plan_file(f"file://{tmp_path}/y", "y", "", hub)).size == 1
    with pytest.raises(HubModelMissing, match="there is no file"):
        await plan_file(f"file://{tmp_path}/z", "z", "", hub)
    for uri in ("hf://org/repo", "smollm2"):
        with pytest.raises(InvalidInput, match="does not name one file"):
            await plan_file(uri, "z", "", hub)


@pytest.mark.parametrize("name", ["", " x", "a#b", "../x", "/x", "a/../b", "~x", "x" * 300, "a\nb", "a\\b"])
async def test_a_name_that_leads_elsewhere_is_refused(server: FileServer, hub: HubAccess, name: str) -> None:
    url = server.add("/m.gguf", CHAT)
    if not name:
        assert (await plan(hub, url, name=name)).name == "m"
        return
    with pytest.raises(InvalidInput, match=r"^name: "):
        await plan(hub, url, name=name)


async def test_a_directory_with_very_many_files_is_not_walked_to_its_end(tmp_path: Path, hub: HubAccess) -> None:
    for number in range(10_001):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(InvalidInput, match="has more than 10000 files; name the directory of one model"):
        await plan(hub, str(tmp_path))
