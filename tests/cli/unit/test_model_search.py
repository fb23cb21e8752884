"""`corral models search`: what galleries offer, and what to do when they offer nothing."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from corral.wire.galleries import GalleryView
from corral.wire.gallery_models import GalleryFitView, GalleryModelList, GalleryModelView

ROUTE = "GET /api/v1/gallery-models"


def entry(name: str, **changes: Any) -> GalleryModelView:
    made = GalleryModelView(
        id=f"own@{name}", name=name, gallery="own", license="mit", uses=["chat"], backend="llama-cpp", bytes=3 * 1024**3
    )
    return msgspec.structs.replace(made, **changes)


def page(*items: GalleryModelView, **changes: Any) -> GalleryModelList:
    found = GalleryModelList(items=list(items), total=len(items), page=1, pages=1, galleries=[])
    return msgspec.structs.replace(found, **changes)


def broken_gallery(name: str, problem: str) -> GalleryView:
    return GalleryView(
        name=name,
        url="https://far",
        read_from="",
        entries=0,
        fetched_at=None,
        checked_at=None,
        age_seconds=None,
        stale=True,
        changed=False,
        problem=problem,
        skipped=[],
    )


def test_what_is_found_is_shown_with_its_size_and_use(connected: Any, frontend: Any) -> None:
    fits = GalleryFitView(verdict="fits", build="b", reason="", fitting=2, nodes=40)
    blocked = GalleryFitView(verdict="blocked", build="c", reason="too large", nodes=40)
    guessed = entry("b", is_size_guessed=True, is_installed=True, description="First line.\nSecond.", uses=[], fit=fits)
    frontend.tell(ROUTE, page(entry("a", bytes=None), guessed, entry("c", fit=blocked)))
    outcome = connected("models", "search", "qwen", "3", "--use", "chat", "--max-size", "4GB", "--limit", "5")

    assert outcome.code == 0
    assert [line.split() for line in outcome.out.splitlines()] == [
        ["NAME", "SIZE", "FITS", "USES", "BACKEND", "LICENCE", "HERE", "ABOUT"],
        ["a", "–", "–", "chat", "llama-cpp", "mit"],
        ["b", "~3.0", "GiB", "2", "of", "40", "–", "llama-cpp", "mit", "yes", "First", "line."],
        ["c", "3.0", "GiB", "none", "chat", "llama-cpp", "mit"],
    ]
    assert parse_qs(urlsplit(frontend.calls[0].path).query) == {
        "term": ["qwen 3"],
        "use": ["chat"],
        "max_bytes": ["4GB"],
        "per_page": ["5"],
    }


def test_more_than_what_is_shown_is_counted(connected: Any, frontend: Any) -> None:
    frontend.tell(ROUTE, page(entry("a"), total=1709, pages=1709))
    said = connected("models", "search", "--limit", "1").out.splitlines()[-1]
    assert said == "1 of 1709; more words find fewer, --limit shows more."


def test_nothing_found_suggests_near_names(connected: Any, frontend: Any) -> None:
    frontend.tell(ROUTE, page(near=["smollm2"]))
    outcome = connected("models", "search", "smolm2")
    assert (outcome.code, outcome.out) == (
        0,
        "No model of the galleries mentions 'smolm2'; did you mean smollm2?\n",
    )
    frontend.tell(ROUTE, page())
    assert "hf://ORG/REPO" in connected("models", "search", "--tag", "none").out


def test_a_gallery_that_cannot_be_read_is_named(connected: Any, frontend: Any) -> None:
    frontend.tell(ROUTE, page(entry("a"), galleries=[broken_gallery("far", "no answer")]))
    assert connected("models", "search").err == "warning: far: no answer\n"


def test_json_is_all_that_the_frontend_said(connected: Any, frontend: Any) -> None:
    frontend.tell(ROUTE, page(entry("a")))
    assert connected("models", "search", "--json").json() == msgspec.to_builtins(page(entry("a")))


def test_neither_warnings_nor_errors_move_the_cursor(connected: Any, frontend: Any) -> None:
    evil = broken_gallery("own", "\x1b]0;owned\x07it is away\r\x9b2Jgone")
    frontend.tell(ROUTE, page(entry("a"), galleries=[evil]))
    assert connected("models", "search").err == "warning: own: �]0;owned�it is away\n�2Jgone\n"

    frontend.tell(ROUTE, {"error": {"message": "a node says: \x1b[31mno\nnever"}}, status=400)
    assert connected("models", "search").err == "error: a node says: �[31mno\nnever\n"
