"""`corral gallery`: what it shows, and what it says when something is wrong."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from corral.wire.galleries import FleetGalleryListing, FleetOfferView, GalleryView, NodesFitView

from .conftest import Corral, StubFrontend

INDEX = """
- name: llama-cpp
  alias: llama-cpp
  tags: [text, LLM]
  description: Llamas in C++.
  capabilities: {default: cpu-llama-cpp, nvidia-cuda-12: cuda12-llama-cpp}
- name: cpu-llama-cpp
  alias: llama-cpp
  uri: quay.io/x:latest-cpu-llama-cpp
  mirrors: [docker.io/x:latest-cpu-llama-cpp]
- name: cuda12-llama-cpp
  alias: llama-cpp
  uri: quay.io/x:latest-gpu-nvidia-cuda-12-llama-cpp
- name: vllm
  capabilities: {nvidia-cuda-12: cuda12-vllm}
- name: cuda12-vllm
  uri: quay.io/x:latest-gpu-nvidia-cuda-12-vllm
- name: cpu-whisper
  alias: whisper
  uri: quay.io/x:latest-cpu-whisper
- name: whisper-development
  uri: quay.io/x:master-cpu-whisper
- name: [bad]
"""


@pytest.fixture
def index(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = home / "index.yaml"
    file.write_text(INDEX)
    galleries = [{"name": "mine", "url": file.as_uri()}]
    monkeypatch.setenv("CORRAL_BACKEND_GALLERIES", json.dumps(galleries))
    monkeypatch.setenv("CORRAL_CAPABILITY", "default")
    monkeypatch.setenv("CORRAL_SYSTEM_BACKENDS_PATH", str(home / "none"))
    return file


def column(out: str, number: int) -> list[str]:
    rows = out.partition("\n\n")[0].splitlines()[1:]
    return [row.split()[number] for row in rows]


def test_a_list_shows_what_people_would_ask_for_and_whether_it_fits(corral: Corral, index: Path) -> None:
    outcome = corral("gallery", "list")
    assert outcome.code == 0
    assert column(outcome.out, 0) == ["llama-cpp", "vllm", "cpu-whisper"]
    assert column(outcome.out, 2) == ["yes", "no", "yes"]
    assert "vllm has builds for nvidia-cuda-12, and this machine is default" in outcome.out
    assert "This is for this machine, whose capability is default: it has no GPU" in outcome.out
    assert f"mine: 7 entries from {index.as_uri()}" in outcome.out
    assert "Passed over: mine: an entry in line 23: name: must be text, got a list" in outcome.out


def test_a_list_can_show_more_or_less(corral: Corral, index: Path) -> None:
    assert "cuda12-vllm" in column(corral("gallery", "list", "--builds").out, 0)
    assert "whisper-development" in column(corral("gallery", "list", "--development").out, 0)
    assert column(corral("gallery", "list", "--fitting").out, 0) == ["llama-cpp", "cpu-whisper"]
    assert column(corral("gallery", "list", "--fitting", "--capability", "nvidia-cuda-12").out, 3) == [
        "cuda12-llama-cpp",
        "cuda12-vllm",
        "cpu-whisper",
    ]


def test_what_is_installed_is_said(corral: Corral, index: Path, home: Path) -> None:
    backend = home / "backends" / "cpu-llama-cpp"
    backend.mkdir(parents=True)
    (backend / "run.sh").touch()
    outcome = corral("gallery", "list", "--backends", str(home / "backends"))
    assert column(outcome.out, 2) == ["installed", "no", "yes"]


def test_a_list_for_machines_has_everything(corral: Corral, index: Path) -> None:
    found = corral("gallery", "list", "--json").json()
    assert isinstance(found, dict)
    assert found["capability"] == "default"
    llama, vllm, _ = found["items"]
    assert llama["fit"] == {
        "verdict": "fits",
        "build": "cpu-llama-cpp",
        "installed": False,
        "reason": "",
        "would_fit": [],
    }
    assert (llama["id"], llama["meta"]) == ("mine@llama-cpp", True)
    assert (vllm["fit"]["verdict"], vllm["fit"]["build"]) == ("blocked", "")
    (gallery,) = found["galleries"]
    assert (gallery["name"], gallery["entries"], gallery["stale"]) == ("mine", 7, False)
    assert gallery["skipped"] == [
        {"gallery": "mine", "name": "", "line": 23, "problem": "name: must be text, got a list"}
    ]


def test_a_search_looks_at_names_tags_and_descriptions(corral: Corral, index: Path) -> None:
    assert column(corral("gallery", "search", "LLAMA", "c++").out, 0) == ["llama-cpp"]
    assert column(corral("gallery", "search", "whisper").out, 0) == ["cpu-whisper", "whisper-development"]
    nothing = corral("gallery", "search", "wisper")
    assert nothing.code == 0
    assert "No backend mentions 'wisper'; did you mean whisper" in nothing.out


@pytest.mark.parametrize("name", ["llama-cpp", "mine@llama-cpp", "LLAMA-CPP"])
def test_a_meta_is_shown_with_its_builds(corral: Corral, index: Path, name: str) -> None:
    out = corral("gallery", "show", name).out
    assert "meta backend" in out
    assert "yes: cpu-llama-cpp" in out
    assert "Build for nvidia-cuda-12" in out


def test_a_build_is_shown_with_where_it_comes_from(corral: Corral, index: Path) -> None:
    out = corral("gallery", "show", "cpu-llama-cpp").out
    assert "quay.io/x:latest-cpu-llama-cpp" in out
    assert "docker.io/x:latest-cpu-llama-cpp" in out


def test_an_alias_is_shown_as_its_build(corral: Corral, index: Path) -> None:
    found = corral("gallery", "show", "whisper", "--json").json()
    assert isinstance(found, dict)
    assert (found["name"], found["fit"]["build"]) == ("cpu-whisper", "cpu-whisper")


def test_what_does_not_fit_says_why_and_what_would(corral: Corral, index: Path) -> None:
    out = corral("gallery", "show", "cuda12-llama-cpp").out
    assert "no: cuda12-llama-cpp is for NVIDIA ('cuda' in its name or uri), and this machine is default" in out
    assert "llama-cpp, cpu-llama-cpp" in out


def test_a_name_that_nobody_has_ends_with_a_hint(corral: Corral, index: Path) -> None:
    outcome = corral("gallery", "show", "lama-cpp")
    assert (outcome.code, outcome.out) == (1, "")
    assert "no gallery has a backend 'lama-cpp'; did you mean llama-cpp" in outcome.err


class TestFleet:
    """Where there is a fleet, its frontend is asked, whatever this machine's galleries have."""

    LLAMA = FleetOfferView(
        id="far@llama-cpp",
        name="llama-cpp",
        gallery="far",
        meta=True,
        development=False,
        alias="",
        description="",
        license="",
        version="",
        tags=[],
        urls=[],
        uri="",
        mirrors=[],
        capabilities={"default": "cpu-llama-cpp", "nvidia": "cuda-llama-cpp"},
        fits=[
            NodesFitView(verdict="fits", build="cpu-llama-cpp", installed=True, nodes=["w1"], installed_on=["w1"]),
            NodesFitView(verdict="blocked", reason="no build is for amd", would_fit=["other"], nodes=["w2"]),
        ],
    )
    BUILD = structs.replace(LLAMA, id="far@cpu-llama-cpp", name="cpu-llama-cpp", meta=False, capabilities={})
    NOWHERE = structs.replace(BUILD, id="far@vllm", name="vllm", fits=LLAMA.fits[1:])
    GALLERY = GalleryView(
        name="far",
        url="https://far.example/i",
        read_from="https://far.example/i",
        entries=3,
        fetched_at=None,
        checked_at=None,
        age_seconds=None,
        stale=False,
        changed=True,
        problem="",
        skipped=[],
    )

    @pytest.fixture
    def fleet(self, connected: Corral, frontend: StubFrontend, index: Path) -> Corral:
        listing = FleetGalleryListing(items=[self.LLAMA, self.BUILD, self.NOWHERE], galleries=[self.GALLERY])
        frontend.tell("GET /api/v1/galleries", listing)
        return connected

    def test_a_list_shows_what_the_fleet_has_and_which_nodes_can_use_it(
        self, fleet: Corral, frontend: StubFrontend
    ) -> None:
        outcome = fleet("gallery", "list")
        assert outcome.code == 0
        assert column(outcome.out, 0) == ["llama-cpp", "vllm"]
        assert column(outcome.out, 2) == ["w1", "no"]
        assert "no build is for amd" in outcome.out
        assert f"This is for the nodes of the fleet at {frontend.url}" in outcome.out
        assert "far: 3 entries from https://far.example/i" in outcome.out
        assert "mine" not in outcome.out

    def test_a_list_can_show_more_or_less(self, fleet: Corral) -> None:
        assert column(fleet("gallery", "list", "--builds").out, 0) == ["llama-cpp", "cpu-llama-cpp", "vllm"]
        assert column(fleet("gallery", "list", "--fitting").out, 0) == ["llama-cpp"]

    def test_a_list_for_machines_says_whose_it_is(self, fleet: Corral) -> None:
        found: Any = fleet("gallery", "list", "--json").json()
        assert (found["scope"], [one["name"] for one in found["items"]]) == ("fleet", ["llama-cpp", "vllm"])
        assert found["items"][0]["fits"][0]["nodes"] == ["w1"]
        here: Any = fleet("gallery", "list", "--json", "--local").json()
        assert (here["scope"], here["galleries"][0]["name"]) == ("machine", "mine")

    @pytest.mark.parametrize("flags", [["--local"], ["--capability", "default"], ["--gallery-max-age", "1h"]])
    def test_what_is_about_this_machine_does_not_ask_the_fleet(
        self, fleet: Corral, frontend: StubFrontend, flags: list[str]
    ) -> None:
        outcome = fleet("gallery", "list", *flags)
        assert "This is for this machine, whose capability is default: it has no GPU" in outcome.out
        assert frontend.calls == []

    def test_a_fleet_and_this_machine_cannot_both_be_meant(self, fleet: Corral, frontend: StubFrontend) -> None:
        outcome = fleet("gallery", "list", "--url", frontend.url, "--local")
        assert outcome.code == 64
        assert "--url asks a fleet, and --local is about this machine" in outcome.err

    def test_a_search_is_the_fleets(self, fleet: Corral, frontend: StubFrontend) -> None:
        nothing = FleetGalleryListing(items=[], galleries=[self.GALLERY], near=["llama-cpp"])
        frontend.tell("GET /api/v1/galleries?term=lama+x", nothing)
        assert "No backend mentions 'lama x'; did you mean llama-cpp?" in fleet("gallery", "search", "lama", "x").out

    def test_one_backend_is_shown_with_its_nodes(self, fleet: Corral, frontend: StubFrontend) -> None:
        frontend.tell("GET /api/v1/galleries/backends/far%40llama-cpp", self.LLAMA)
        out = fleet("gallery", "show", "far@llama-cpp").out
        assert "yes on w1: cpu-llama-cpp" in out
        assert "no on w2: no build is for amd" in out
        assert frontend.url in out
        refusal = {"error": {"code": "not_found", "message": "no gallery has a backend 'x'"}}
        frontend.tell("GET /api/v1/galleries/backends/x", refusal, status=404)
        outcome = fleet("gallery", "show", "x")
        assert (outcome.code, outcome.err) == (1, "error: no gallery has a backend 'x'\n")

    def test_a_refresh_is_done_by_the_frontend(self, fleet: Corral, frontend: StubFrontend) -> None:
        old = structs.replace(self.GALLERY, stale=True, problem="it is away")
        frontend.tell("GET /api/v1/galleries?refresh=1", FleetGalleryListing(items=[], galleries=[old]))
        outcome = fleet("gallery", "refresh")
        assert outcome.code == 69
        assert "it is away" in outcome.out
        assert f"Read by the fleet at {frontend.url}." in outcome.out

    def test_a_fleet_that_does_not_answer_is_not_replaced_by_this_machine(self, fleet: Corral) -> None:
        outcome = fleet("gallery", "list", "--url", "http://127.0.0.1:1")
        assert (outcome.code, outcome.out) == (69, "")
        assert "no answer from http://127.0.0.1:1" in outcome.err


class TestAway:
    @pytest.fixture
    def remote(self, index: Path, frontend: StubFrontend, monkeypatch: pytest.MonkeyPatch) -> StubFrontend:
        galleries = [{"name": "far", "url": f"{frontend.url}/index.yaml"}]
        monkeypatch.setenv("CORRAL_BACKEND_GALLERIES", json.dumps(galleries))
        frontend.tell("GET /index.yaml", INDEX.encode())
        return frontend

    def test_an_old_copy_is_listed_with_its_age(self, corral: Corral, remote: StubFrontend) -> None:
        assert "far: 7 entries from" in corral("gallery", "list").out
        assert "checked" in corral("gallery", "list").out
        assert len(remote.calls) == 1
        remote.tell("GET /index.yaml", b"", status=503)
        outcome = corral("gallery", "list", "--gallery-max-age", "0s")
        assert outcome.code == 0
        assert "llama-cpp" in column(outcome.out, 0)
        old = rf"far: old copy, 7 entries from {re.escape(remote.url)}/index\.yaml, checked (now|\d+s ago): "
        assert re.search(old, outcome.out)
        assert "answers 503" in outcome.out
        assert outcome.err == "", "nothing is said twice"

    def test_a_refresh_says_what_is_new(self, corral: Corral, remote: StubFrontend) -> None:
        assert "new version" in corral("gallery", "refresh").out
        assert "unchanged" in corral("gallery", "refresh").out
        remote.tell("GET /index.yaml", b"- name: x\n  uri: a\n")
        assert "new version" in corral("gallery", "refresh").out
        assert column(corral("gallery", "list").out, 0) == ["x"]

    def test_a_refresh_that_reaches_nobody_fails(self, corral: Corral, remote: StubFrontend) -> None:
        corral("gallery", "refresh")
        remote.tell("GET /index.yaml", b"", status=500)
        outcome = corral("gallery", "refresh")
        assert outcome.code == 69
        assert "old copy, 7 entries" in outcome.out
        failed = corral("gallery", "refresh", "--json")
        assert failed.code == 69
        document: Any = failed.json()
        assert document["items"][0]["stale"] is True

    def test_a_gallery_that_cannot_be_read_at_all_is_named(self, corral: Corral, remote: StubFrontend) -> None:
        remote.tell("GET /index.yaml", b"", status=404)
        outcome = corral("gallery", "list")
        assert "There is no such backend in any gallery." in outcome.out
        assert "far: cannot be read: " in outcome.out
        shown = corral("gallery", "show", "llama-cpp")
        assert "no gallery has a backend 'llama-cpp'. The gallery far cannot be read: " in shown.err


def test_a_bad_list_of_galleries_is_refused_by_name(corral: Corral, index: Path) -> None:
    outcome = corral("gallery", "list", "--backend-galleries", "nonsense")
    assert outcome.code == 64
    assert "backend_galleries" in outcome.err
