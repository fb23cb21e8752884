"""Galleries over real HTTP: fetched once, kept, checked, and replaced by old copies when their places are away."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from corral.base.errors import PeerRefused
from corral.base.tasks import end_tasks, start_task, task_group
from corral.galleries.catalogue import ResolvedBuild
from corral.galleries.config import BUILT_IN
from corral.galleries.fetching import ArtefactFile, fetch
from corral.galleries.galleries import Galleries
from corral.galleries.gallery import GallerySource
from corral.galleries.readings import GalleryReading
from tests.kit.certificates import Authority
from tests.kit.clock import ManualClock
from tests.kit.loop_time import overdue

from .conftest import INDEX, Opener, Origin, serving

HOUR = timedelta(hours=1)
OTHER = b"- name: y\n  uri: quay.io/y:1\n"


async def one(galleries: Galleries, source: GallerySource) -> GalleryReading:
    (reading,) = (await galleries.read([source])).readings
    return reading


def names(reading: GalleryReading) -> list[str]:
    return [entry.name for entry in reading.gallery.entries]


class TestFreshness:
    async def test_an_index_is_fetched_once_and_checked_after_an_hour(
        self, galleries: Galleries, origin: Origin, clock: ManualClock
    ) -> None:
        first = await one(galleries, origin.source())
        assert (names(first), first.is_new, first.is_stale, first.problem) == (["x"], True, False, "")
        again = await one(galleries, origin.source())
        assert not again.is_new
        assert origin.statuses == [200]
        await clock.advance(HOUR)
        checked = await one(galleries, origin.source())
        assert origin.statuses == [200, 304]
        assert checked.fetched_at == first.fetched_at
        assert checked.age(clock.now()) == timedelta(0)

    async def test_a_new_version_is_seen_without_a_restart(
        self, galleries: Galleries, origin: Origin, clock: ManualClock
    ) -> None:
        await one(galleries, origin.source())
        origin.content, origin.etag = OTHER, '"2"'
        assert names(await one(galleries, origin.source())) == ["x"], "not before its time"
        (refreshed,) = (await galleries.refresh([origin.source()])).readings
        assert (names(refreshed), refreshed.is_new) == (["y"], True)
        assert names(await one(galleries, origin.source())) == ["y"]

    async def test_a_version_that_another_process_fetched_is_seen(self, opener: Opener, origin: Origin) -> None:
        async with opener() as worker, opener() as command:
            await one(worker, origin.source())
            origin.content, origin.etag = OTHER, '"2"'
            await command.refresh([origin.source()])
            asked = len(origin.seen)
            assert names(await one(worker, origin.source())) == ["y"]
            assert len(origin.seen) == asked, "the copy on the disk is enough"

    async def test_a_restarted_process_asks_once_whether_it_changed(
        self, opener: Opener, origin: Origin, clock: ManualClock
    ) -> None:
        async with opener() as first:
            await one(first, origin.source())
        await clock.advance(timedelta(seconds=1))
        async with opener() as second:
            assert names(await one(second, origin.source())) == ["x"]
            assert names(await one(second, origin.source())) == ["x"]
        assert origin.statuses == [200, 304]

    async def test_a_clock_that_was_wrong_at_the_start_costs_one_request(
        self, opener: Opener, origin: Origin, clock: ManualClock
    ) -> None:
        clock.jump(HOUR)
        async with opener() as galleries:
            clock.jump(-HOUR)
            await one(galleries, origin.source())
            await one(galleries, origin.source())
        assert origin.statuses == [200]

    async def test_a_missing_name_is_worth_a_request_every_half_minute(
        self, galleries: Galleries, origin: Origin, clock: ManualClock
    ) -> None:
        readings = await galleries.read([origin.source()])
        origin.content, origin.etag = OTHER, '"2"'
        assert await galleries.recheck(readings) is readings, "it was read just now"
        await clock.advance(timedelta(seconds=30))
        again = await galleries.recheck(readings)
        assert again.catalogue.knows("y")
        await galleries.recheck(again)
        assert origin.statuses == [200, 200]

    async def test_a_gallery_that_is_away_is_not_asked_again_for_a_missing_name(
        self, galleries: Galleries, origin: Origin, clock: ManualClock
    ) -> None:
        await galleries.read([origin.source()])
        origin.fail("/index.yaml", 503)
        await clock.advance(HOUR)
        for _ in range(3):
            await galleries.recheck(await galleries.read([origin.source()]))
        assert origin.statuses == [200, 503]

    async def test_a_time_of_change_does_where_there_is_no_etag(self, galleries: Galleries, origin: Origin) -> None:
        origin.etag, origin.last_modified = "", "Wed, 21 Oct 2015 07:28:00 GMT"
        await one(galleries, origin.source())
        await galleries.refresh([origin.source()])
        assert origin.statuses == [200, 304]

    async def test_a_server_without_either_is_asked_in_full(self, galleries: Galleries, origin: Origin) -> None:
        origin.etag = ""
        await one(galleries, origin.source())
        (reading,) = (await galleries.refresh([origin.source()])).readings
        assert origin.statuses == [200, 200]
        assert not reading.is_new, "the same bytes are no news"

    async def test_a_copy_from_the_future_is_checked(self, opener: Opener, origin: Origin, clock: ManualClock) -> None:
        ahead = ManualClock(clock.now() + timedelta(days=400))
        async with opener() as other:
            other._clock = ahead
            await one(other, origin.source())
        async with opener() as galleries:
            await one(galleries, origin.source())
        assert origin.statuses == [200, 304]


class TestAway:
    @pytest.mark.parametrize("status", [404, 403, 429, 500, 503])
    async def test_an_old_copy_is_used_and_its_age_is_told(
        self, galleries: Galleries, origin: Origin, clock: ManualClock, status: int
    ) -> None:
        await one(galleries, origin.source())
        origin.fail("/index.yaml", status)
        await clock.advance(3 * HOUR)
        reading = await one(galleries, origin.source())
        assert names(reading) == ["x"]
        assert reading.is_stale
        assert reading.age(clock.now()) == 3 * HOUR
        assert reading.problem == f"{origin.url}/index.yaml answers {status}"

    async def test_a_place_that_failed_rests_for_a_minute(
        self, galleries: Galleries, origin: Origin, clock: ManualClock
    ) -> None:
        await one(galleries, origin.source())
        origin.fail("/index.yaml", 500)
        await clock.advance(HOUR)
        await one(galleries, origin.source())
        asked = len(origin.seen)
        rested = await one(galleries, origin.source())
        assert len(origin.seen) == asked
        assert (rested.is_stale, rested.problem) == (True, f"{origin.url}/index.yaml answers 500")
        del origin.answers["/index.yaml"]
        await clock.advance(timedelta(minutes=1))
        back = await one(galleries, origin.source())
        assert (back.is_stale, back.problem) == (False, "")

    async def test_without_a_copy_every_reading_asks(self, galleries: Galleries, origin: Origin) -> None:
        origin.fail("/index.yaml", 500)
        reading = await one(galleries, origin.source())
        assert (reading.is_known, names(reading)) == (False, [])
        del origin.answers["/index.yaml"]
        assert names(await one(galleries, origin.source())) == ["x"]

    async def test_mirrors_are_tried_in_order(self, galleries: Galleries, origin: Origin) -> None:
        origin.fail("/index.yaml", 500)
        origin.fail("/first", 404)
        reading = await one(galleries, origin.source("/index.yaml", "/first", "/second", "/third"))
        assert (names(reading), reading.url, reading.is_stale) == (["x"], f"{origin.url}/second", False)
        assert [request.path for request in origin.seen] == ["/index.yaml", "/first", "/second"]
        assert "/index.yaml answers 500" in reading.problem
        assert "/first answers 404" in reading.problem

    async def test_a_server_that_is_not_there_is_told(self, galleries: Galleries) -> None:
        reading = await one(galleries, GallerySource(name="g", url="http://127.0.0.1:1/i"))
        assert reading.problem == "http://127.0.0.1:1/i does not answer: connection refused"

    async def test_one_gallery_hurts_no_other(self, galleries: Galleries, origin: Origin) -> None:
        origin.fail("/bad", 500)
        bad = GallerySource(name="bad", url=f"{origin.url}/bad")
        odd = GallerySource(name="odd", url="gopher://x")
        found = await galleries.read([bad, odd, BUILT_IN, origin.source()])
        assert [reading.is_known for reading in found.readings] == [False, False, True, True]
        assert isinstance(found.catalogue.resolve("g@x", "default"), ResolvedBuild)
        assert [failure.partition(": ")[0] for failure in found.failures] == [
            "the gallery bad cannot be read",
            "the gallery odd cannot be read",
        ]

    async def test_a_source_that_stays_away_is_told_once(
        self, galleries: Galleries, origin: Origin, caplog: pytest.LogCaptureFixture
    ) -> None:
        origin.fail("/index.yaml", 500)
        for _ in range(3):
            await one(galleries, origin.source())
        assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
            f"gallery is away: {origin.url}/index.yaml answers 500"
        ]


class TestBadAnswers:
    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (b"<html>oops</html>", "is not a list of backends"),
            (b"", "is not a list of backends"),
            (b"[]", "holds no backend that can be used"),
            (b"- 1\n- 2\n", "holds no backend that can be used: the entry in line 1: must be a mapping"),
            (b"- [", "is not YAML"),
            (b"\xff\xfe\x00", "is not UTF-8"),
        ],
    )
    async def test_what_is_no_index_never_takes_the_place_of_a_good_copy(
        self, galleries: Galleries, origin: Origin, content: bytes, problem: str
    ) -> None:
        await one(galleries, origin.source())
        origin.content, origin.etag = content, '"2"'
        (reading,) = (await galleries.refresh([origin.source()])).readings
        assert (names(reading), reading.is_stale) == (["x"], True)
        assert problem in reading.problem

    async def test_a_bad_entry_is_shown_and_the_others_are_used(self, galleries: Galleries, origin: Origin) -> None:
        origin.content = INDEX + b"- name: [bad]\n- name: z\n  uri: a\n"
        reading = await one(galleries, origin.source())
        assert names(reading) == ["x", "z"]
        assert [problem.line for problem in reading.gallery.skipped] == [3]

    @pytest.mark.parametrize("is_announced", [True, False])
    async def test_an_endless_index_is_cut_off(self, opener: Opener, origin: Origin, is_announced: bool) -> None:
        async def endless(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Length": str(10**9)} if is_announced else {})
            await response.prepare(request)
            while True:
                await response.write(b"#" * 65536)

        origin.answers["/index.yaml"] = endless
        async with opener(max_bytes=100_000) as galleries:
            reading = await one(galleries, origin.source())
        assert "is larger than 97.7 KiB; the setting gallery.max_size allows more" in reading.problem

    async def test_a_server_that_takes_too_long_is_left(self, opener: Opener, origin: Origin) -> None:
        async def slow(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"- name: x\n")
            begun.set()
            await origin.over.wait()
            return response

        begun, patience = asyncio.Event(), timedelta(seconds=10)
        origin.answers["/index.yaml"] = slow
        async with opener(timeout=patience) as galleries:
            reading = await overdue(one(galleries, origin.source("/index.yaml", "/mirror")), begun, by=patience)
        assert (names(reading), reading.url) == (["x"], f"{origin.url}/mirror")
        assert "timed out; the setting gallery.timeout allows more" in reading.problem

    async def test_an_answer_that_breaks_off_is_no_index(self, galleries: Galleries, origin: Origin) -> None:
        async def cut(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Length": "1000"})
            await response.prepare(request)
            await response.write(INDEX)
            assert request.transport is not None
            request.transport.abort()
            return response

        origin.answers["/index.yaml"] = cut
        reading = await one(galleries, origin.source())
        assert "the connection broke off" in reading.problem

    async def test_packed_answers_are_not_unpacked(self, galleries: Galleries, origin: Origin) -> None:
        async def packed(request: web.Request) -> web.Response:
            assert request.headers["Accept-Encoding"] == "identity"
            return web.Response(body=b"bomb", headers={"Content-Encoding": "gzip"})

        origin.answers["/index.yaml"] = packed
        assert "comes packed as 'gzip'" in (await one(galleries, origin.source())).problem


class TestRedirects:
    async def test_a_few_are_followed(self, galleries: Galleries, origin: Origin) -> None:
        async def moved(request: web.Request) -> web.StreamResponse:
            raise web.HTTPFound("/real")

        origin.answers["/index.yaml"] = moved
        assert names(await one(galleries, origin.source())) == ["x"]

    async def test_a_circle_ends(self, galleries: Galleries, origin: Origin) -> None:
        async def moved(request: web.Request) -> web.StreamResponse:
            raise web.HTTPFound("/index.yaml")

        origin.answers["/index.yaml"] = moved
        assert "redirects more than 5 times" in (await one(galleries, origin.source())).problem
        assert len(origin.seen) < 10

    async def test_a_login_is_not_carried_to_another_host(self, galleries: Galleries, origin: Origin) -> None:
        async with serving(Origin()) as other:

            async def moved(request: web.Request) -> web.StreamResponse:
                assert request.headers["Authorization"].startswith("Basic ")
                raise web.HTTPFound(f"{other.url}/index.yaml")

            origin.answers["/index.yaml"] = moved
            source = GallerySource(name="g", url=origin.url.replace("://", "://user:hidden@") + "/index.yaml")
            reading = await one(galleries, source)
        assert names(reading) == ["x"]
        assert "Authorization" not in other.seen[0].headers

    async def test_a_login_is_never_told(self, galleries: Galleries, origin: Origin) -> None:
        origin.fail("/index.yaml", 401)
        source = GallerySource(name="g", url=origin.url.replace("://", "://user:hidden@") + "/index.yaml?key=hidden")
        reading = await one(galleries, source)
        assert reading.problem.endswith("/index.yaml answers 401")
        assert "hidden" not in reading.problem


class TestTls:
    @pytest.fixture
    def authority(self, tmp_path: Path) -> Authority:
        return Authority(tmp_path / "authority")

    @pytest.fixture
    async def secure(self, authority: Authority) -> AsyncIterator[Origin]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*authority.issue("server"))
        async with serving(Origin(), tls=context) as opened:
            yield opened

    @pytest.fixture
    async def trusting(self, authority: Authority) -> AsyncIterator[aiohttp.ClientSession]:
        context = ssl.create_default_context(cafile=authority.file)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
            yield session

    async def test_a_certificate_that_nobody_trusts_is_told(self, galleries: Galleries, secure: Origin) -> None:
        assert "its certificate is not trusted" in (await one(galleries, secure.source())).problem

    async def test_one_that_is_trusted_will_do(self, trusting: aiohttp.ClientSession, secure: Origin) -> None:
        found = await fetch(trusting, f"{secure.url}/i", {}, most_bytes=1000)
        assert found is not None
        assert found.content == INDEX

    async def test_what_was_asked_for_over_tls_must_not_come_without(
        self, trusting: aiohttp.ClientSession, secure: Origin, origin: Origin
    ) -> None:
        async def moved(request: web.Request) -> web.StreamResponse:
            raise web.HTTPFound(f"{origin.url}/index.yaml?token=hidden")

        secure.answers["/i"] = moved
        with pytest.raises(PeerRefused, match="redirects from https to http://") as caught:
            await fetch(trusting, f"{secure.url}/i", {}, most_bytes=1000)
        assert "hidden" not in caught.value.message


class TestReferences:
    async def test_a_reference_names_the_index_beside_it(self, galleries: Galleries, origin: Origin) -> None:
        async def named(request: web.Request) -> web.Response:
            return web.Response(text="v2.yaml\n")

        origin.answers["/a/latest.ref"] = named
        reading = await one(galleries, origin.source("/a/latest.ref"))
        assert (names(reading), reading.url) == (["x"], f"{origin.url}/a/v2.yaml")
        await galleries.refresh([origin.source("/a/latest.ref")])
        assert [request.path for request in origin.seen] == ["/a/latest.ref", "/a/v2.yaml"] * 2
        assert origin.statuses == [200, 200, 200, 304]

    @pytest.mark.parametrize("text", ["", "http://elsewhere/x", "a\nb", "é"])
    async def test_a_reference_that_names_nothing_is_refused(
        self, galleries: Galleries, origin: Origin, text: str
    ) -> None:
        async def named(request: web.Request) -> web.Response:
            return web.Response(text=text)

        origin.answers["/latest.ref"] = named
        reading = await one(galleries, origin.source("/latest.ref"))
        assert "does not hold the name of a file" in reading.problem


class TestManyAtOnce:
    async def test_a_hundred_readers_cost_one_question(self, galleries: Galleries, origin: Origin) -> None:
        inside, go_on = asyncio.Event(), asyncio.Event()

        async def held(request: web.Request) -> web.StreamResponse:
            inside.set()
            await go_on.wait()
            return await origin._index(request)

        origin.answers["/index.yaml"] = held
        async with task_group() as group:
            readers = [group.create_task(one(galleries, origin.source())) for _ in range(100)]
            await inside.wait()
            go_on.set()
        assert {tuple(names(reader.result())) for reader in readers} == {("x",)}
        assert len(origin.seen) == 1

    async def test_who_gives_up_ends_it_for_nobody_else(self, galleries: Galleries, origin: Origin) -> None:
        inside, go_on = asyncio.Event(), asyncio.Event()

        async def held(request: web.Request) -> web.StreamResponse:
            inside.set()
            await go_on.wait()
            return await origin._index(request)

        origin.answers["/index.yaml"] = held
        impatient = start_task(one(galleries, origin.source()), name="impatient")
        patient = start_task(one(galleries, origin.source()), name="patient")
        await inside.wait()
        await end_tasks(impatient)
        go_on.set()
        assert names(await patient) == ["x"]

    async def test_who_does_not_wait_has_the_last_copy(
        self, galleries: Galleries, origin: Origin, clock: ManualClock
    ) -> None:
        await one(galleries, origin.source())
        await clock.advance(2 * HOUR)
        reading = await galleries.last_copy(origin.source(), "it is slow")
        assert (names(reading), reading.is_stale, reading.problem) == (["x"], True, "it is slow")
        assert reading.age(clock.now()) == 2 * HOUR
        assert len(origin.seen) == 1

    async def test_without_a_copy_nothing_is_known_of_it(self, galleries: Galleries, origin: Origin) -> None:
        reading = await galleries.last_copy(origin.source(), "it is slow")
        assert (names(reading), reading.is_known, reading.problem) == ([], False, "it is slow")
        assert origin.seen == []

    async def test_closing_ends_what_is_under_way(self, opener: Opener, origin: Origin) -> None:
        inside = asyncio.Event()

        async def held(request: web.Request) -> web.StreamResponse:
            inside.set()
            await origin.over.wait()
            return await origin._index(request)

        origin.answers["/index.yaml"] = held
        async with opener() as galleries:
            reader = start_task(one(galleries, origin.source()), name="reader")
            await inside.wait()
            await end_tasks(reader)
            (fetching,) = (task for task in asyncio.all_tasks() if task.get_name().startswith("read gallery"))
        assert fetching.cancelled()

    async def test_many_sources_are_forgotten_again(self, galleries: Galleries, origin: Origin) -> None:
        sources = [origin.source(f"/{number}") for number in range(100)]
        await galleries.read(sources)
        assert len(galleries._copies) <= 64

    async def test_a_signature_policy_is_that_of_the_asker(self, galleries: Galleries, origin: Origin) -> None:
        plain = origin.source()
        strict = GallerySource(name=plain.name, url=plain.url, verification={"issuer": "i"})
        await one(galleries, plain)
        assert (await one(galleries, strict)).source.verification == {"issuer": "i"}
        assert (await one(galleries, plain)).source.verification == {}


class TestFiles:
    async def test_a_file_is_always_as_it_is(self, galleries: Galleries, tmp_path: Path) -> None:
        file = tmp_path / "index.yaml"
        file.write_bytes(INDEX)
        source = GallerySource(name="f", url=file.as_uri())
        first = await one(galleries, source)
        assert (names(first), first.checked_at) == (["x"], None)
        file.write_bytes(OTHER + b"# longer\n")
        assert names(await one(galleries, source)) == ["y"]
        file.unlink()
        assert "cannot be read: No such file" in (await one(galleries, source)).problem

    async def test_relative_paths_lead_from_the_index(self, galleries: Galleries, tmp_path: Path) -> None:
        (tmp_path / "index.yaml").write_text("- name: x\n  uri: ./here\n- name: y\n  uri: /there\n")
        reading = await one(galleries, GallerySource(name="f", url=(tmp_path / "index.yaml").as_uri()))
        assert [entry.artefact for entry in reading.gallery.entries] == [str(tmp_path / "here"), "/there"]
        assert reading.gallery.entries[0].uri == "./here", "the rules look at what is written"

    async def test_a_mirror_helps_a_missing_file(self, galleries: Galleries, origin: Origin, tmp_path: Path) -> None:
        source = GallerySource(name="f", url=(tmp_path / "none").as_uri(), mirrors=(f"{origin.url}/m",))
        assert names(await one(galleries, source)) == ["x"]
        (tmp_path / "none").write_bytes(OTHER)
        assert names(await one(galleries, source)) == ["y"]

    async def test_what_is_no_file_makes_nobody_wait(self, galleries: Galleries, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        for path, problem in ((tmp_path / "pipe", "is not a file"), (tmp_path, "Is a directory")):
            reading = await one(galleries, GallerySource(name="f", url=path.as_uri()))
            assert problem in reading.problem

    async def test_a_large_file_is_refused(self, opener: Opener, tmp_path: Path) -> None:
        (tmp_path / "big").write_bytes(b"#" * 2000)
        async with opener(max_bytes=1000) as galleries:
            reading = await one(galleries, GallerySource(name="f", url=(tmp_path / "big").as_uri()))
        assert "is larger than 1000 B" in reading.problem

    async def test_a_reference_file_names_the_one_beside_it(self, galleries: Galleries, tmp_path: Path) -> None:
        (tmp_path / "latest.ref").write_text("v1.yaml\n")
        (tmp_path / "v1.yaml").write_bytes(INDEX)
        source = GallerySource(name="f", url=(tmp_path / "latest.ref").as_uri())
        assert names(await one(galleries, source)) == ["x"]


class StubRegistry:
    """A registry with one artefact."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def read_artefact(self, reference: str, *, known_digest: str, most_bytes: int) -> ArtefactFile | None:
        self.asked.append((reference, known_digest))
        return None if known_digest == "sha256:1" else ArtefactFile(digest="sha256:1", content=INDEX)


class TestRegistries:
    SOURCE = GallerySource(name="o", url="oci://registry.example/index:latest")

    async def test_an_artefact_is_fetched_when_its_digest_is_new(self, opener: Opener) -> None:
        registry: Any = StubRegistry()
        async with opener(registry=registry) as galleries:
            assert names(await one(galleries, self.SOURCE)) == ["x"]
            (again,) = (await galleries.refresh([self.SOURCE])).readings
        assert (names(again), again.is_new) == (["x"], False)
        assert registry.asked == [
            ("registry.example/index:latest", ""),
            ("registry.example/index:latest", "sha256:1"),
        ]

    async def test_without_a_client_it_is_said_clearly(self, galleries: Galleries) -> None:
        reading = await one(galleries, self.SOURCE)
        assert "cannot read galleries from registries" in reading.problem
