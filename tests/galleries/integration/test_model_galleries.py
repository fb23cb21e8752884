"""Galleries of models over real HTTP: their base definitions are fetched, kept, and found beside a mirrored index."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web
from msgspec.structs import replace

from corral.base.errors import CorralError, InvalidInput
from corral.galleries.config import GalleriesConfig
from corral.galleries.gallery import GallerySource
from corral.galleries.model_check import CheckRules, check_gallery
from corral.galleries.model_entries import NO_BASE, BaseDefinition, GalleryModel, plan_model
from corral.galleries.model_galleries import ModelGalleries, ModelGalleryReading, check_reachable, open_model_galleries
from tests.kit.clock import ManualClock
from tests.kit.galleries import NoRegistry

from .conftest import Origin

BASE = b"config_file: |\n  backend: llama-cpp\n"
PUBLIC = "https://8.8.8.8/index.yaml"


def index_of(*urls: str) -> bytes:
    return "".join(
        f"- {{name: m{number}, url: '{url}', overrides: {{f16: true, parameters: {{model: w}}}}}}\n"
        for number, url in enumerate(urls)
    ).encode()


@pytest.fixture
async def galleries(config: GalleriesConfig, clock: ManualClock) -> AsyncIterator[ModelGalleries]:
    async with open_model_galleries(config, registry=NoRegistry(), clock=clock) as opened:
        yield opened


async def one(galleries: ModelGalleries, source: GallerySource) -> ModelGalleryReading:
    (reading,) = (await galleries.read([source])).readings
    return reading


def serve(origin: Origin, path: str, content: bytes) -> None:
    async def answer(request: web.Request) -> web.Response:
        is_known = request.headers.get("If-None-Match") == '"b"'
        return web.Response(status=304 if is_known else 200, body=b"" if is_known else content, headers={"ETag": '"b"'})

    origin.answers[path] = answer


def paths(origin: Origin) -> list[str]:
    return [request.path for request in origin.seen]


async def test_an_entry_and_its_base_make_a_model(galleries: ModelGalleries, origin: Origin) -> None:
    origin.content = index_of(f"{origin.url}/base.yaml", f"{origin.url}/base.yaml")
    serve(origin, "/base.yaml", BASE)
    reading = await one(galleries, origin.source())
    definitions = await galleries.definitions(reading)
    base = definitions[f"{origin.url}/base.yaml"]
    assert isinstance(base, BaseDefinition)
    assert plan_model(reading.gallery.entries[0], base).config == {
        "name": "m0",
        "backend": "llama-cpp",
        "f16": True,
        "parameters": {"model": "w"},
    }
    assert paths(origin) == ["/index.yaml", "/base.yaml"]


async def test_a_base_is_asked_for_again_when_it_is_old(
    galleries: ModelGalleries, origin: Origin, clock: ManualClock
) -> None:
    entry = GalleryModel(name="m", url=f"{origin.url}/base.yaml")
    serve(origin, "/base.yaml", BASE)
    for _ in range(2):
        await galleries.definition(entry, origin.url)
    assert origin.statuses == [200]
    await clock.advance(timedelta(hours=2))
    assert (await galleries.definition(entry, origin.url)).config["backend"] == "llama-cpp"
    assert origin.statuses == [200, 304]


async def test_a_base_that_is_away_is_replaced_by_its_last_copy(
    galleries: ModelGalleries, origin: Origin, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    entry = GalleryModel(name="m", url=f"{origin.url}/base.yaml")
    serve(origin, "/base.yaml", BASE)
    await galleries.definition(entry, origin.url)
    await clock.advance(timedelta(hours=2))
    origin.fail("/base.yaml", 503)
    assert (await galleries.definition(entry, origin.url)).config["backend"] == "llama-cpp"
    assert "a base definition is away" in caplog.text


async def test_a_mirror_of_the_directory_is_enough(galleries: ModelGalleries, origin: Origin) -> None:
    """The base of LocalAI's entries is on GitHub, by `github:`; here another path stands for it."""
    origin.fail("/far/base.yaml", 404)
    serve(origin, "/gallery/base.yaml", BASE)
    entry = GalleryModel(name="m", url=f"{origin.url}/far/base.yaml")
    base = await galleries.definition(entry, f"{origin.url}/gallery/index.yaml")
    assert base.config == {"backend": "llama-cpp"}
    assert paths(origin) == ["/far/base.yaml", "/gallery/base.yaml"]


@pytest.mark.parametrize("name", ["github:someone/gallery/base.yaml@main", "https://a.org/x/base.yaml?y#z"])
async def test_a_file_beside_a_local_index_stands_for_a_base_elsewhere(
    galleries: ModelGalleries, tmp_path: Path, name: str
) -> None:
    (tmp_path / "index.yaml").write_bytes(index_of(name))
    (tmp_path / "base.yaml").write_bytes(BASE)
    reading = await one(galleries, GallerySource(name="f", url=(tmp_path / "index.yaml").as_uri()))
    definitions = await galleries.definitions(reading)
    assert isinstance(definitions[name], BaseDefinition)


async def test_only_a_local_index_may_name_local_files(galleries: ModelGalleries, tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_bytes(BASE)
    entry = GalleryModel(name="m", url=(tmp_path / "secret.yaml").as_uri())
    with pytest.raises(InvalidInput, match="a file of this machine, which a gallery from elsewhere must not name"):
        await galleries.definition(entry, PUBLIC)
    own = replace(entry, index_path=str(tmp_path / "other" / "index.yaml"))
    assert (await galleries.definition(own, "")).config == {"backend": "llama-cpp"}


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/x", "http://[::1]/x", "http://169.254.169.254/x", "http://localhost/x"]
)
async def test_a_gallery_of_the_internet_does_not_reach_the_own_network(galleries: ModelGalleries, url: str) -> None:
    with pytest.raises(InvalidInput, match="is in the own network"):
        await galleries.definition(GalleryModel(name="m", url=url), PUBLIC)
    await check_reachable(url, "http://10.0.0.1/index.yaml")
    await check_reachable(url, "file:///srv/index.yaml")
    with pytest.raises(InvalidInput, match="is no URL"):
        await check_reachable("http://[", PUBLIC)


async def test_a_definition_that_somebody_named_does_not_lead_into_the_own_network(
    galleries: ModelGalleries, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_own(host: str) -> bool:
        return host == "localhost"

    async def onward(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": f"{origin.url.replace('127.0.0.1', 'localhost')}/inside"})

    monkeypatch.setattr("corral.galleries.model_galleries.is_own_network", is_own)
    origin.answers["/base.yaml"] = onward
    serve(origin, "/inside", BASE)
    with pytest.raises(InvalidInput, match=r"is in the own network \(localhost\)"):
        await galleries.definition(GalleryModel(name="m", url=f"{origin.url}/base.yaml"), "")
    assert paths(origin) == ["/base.yaml"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"#" * (2 * 2**20), "is larger than 1.0 MiB"),
        (b"- a\n", "must be a mapping"),
        (b"config_file: |\n  a: 1\n  a: 2\n", "config_file: has the key 'a' twice, again in line 3"),
    ],
)
async def test_what_is_no_definition_is_told_and_hurts_no_other(
    galleries: ModelGalleries, origin: Origin, content: bytes, problem: str
) -> None:
    origin.content = index_of(f"{origin.url}/bad.yaml", f"{origin.url}/good.yaml", "nonsense")
    serve(origin, "/bad.yaml", content)
    serve(origin, "/good.yaml", BASE)
    reading = await one(galleries, origin.source())
    definitions = await galleries.definitions(reading)
    assert problem in str(definitions[f"{origin.url}/bad.yaml"])
    assert "is no place of a gallery" in str(definitions["nonsense"])
    check = check_gallery(reading.gallery, definitions, CheckRules())
    assert (check.summary.readable, check.summary.refused) == (1, 2)
    assert check.problems[0].line == 1


async def test_an_entry_without_a_url_has_no_base(galleries: ModelGalleries) -> None:
    assert await galleries.definition(GalleryModel(name="m"), "") is NO_BASE


async def test_a_base_that_nobody_has_is_told(galleries: ModelGalleries, origin: Origin) -> None:
    origin.fail("/base.yaml", 404)
    with pytest.raises(CorralError, match="answers 404"):
        await galleries.definition(GalleryModel(name="m", url=f"{origin.url}/base.yaml"), "")


async def test_an_index_without_models_replaces_none(galleries: ModelGalleries, origin: Origin) -> None:
    origin.content = b"<html>oops</html>"
    reading = await one(galleries, origin.source())
    assert "is not a list of models" in reading.problem


async def test_readings_say_what_is_missing(galleries: ModelGalleries, origin: Origin) -> None:
    origin.content = index_of("u")
    origin.fail("/away", 500)
    away = GallerySource(name="away", url=f"{origin.url}/away")
    readings = await galleries.refresh([origin.source(), away])
    (entry,) = readings.catalogue.entries
    assert readings.url_of(entry) == f"{origin.url}/index.yaml"
    assert readings.failures == (f"the gallery away cannot be read: {origin.url}/away answers 500",)
