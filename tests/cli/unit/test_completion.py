"""Completion of nodes: quick, and silent whatever happens."""

from typing import Any

import pytest

from corral.wire.gallery_models import GalleryModelList, GalleryModelView
from corral.wire.models import ModelList, ModelView


def complete(corral: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """What the shell is offered after these words, the last of which is not finished yet."""
    monkeypatch.setenv("_CORRAL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(("corral", *words)))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    outcome = corral()
    assert outcome.err == ""
    return [line.partition(",")[2] for line in outcome.out.splitlines() if line]


def test_names_are_offered_and_ids_once_one_was_begun(
    connected: Any, frontend: Any, make_node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend.tell_nodes(make_node("alpha", "1111"), make_node("alpine", "2222"), make_node("beta", "1199"))
    assert complete(connected, monkeypatch, "nodes", "show", "al") == ["alpha", "alpine"]
    assert complete(connected, monkeypatch, "nodes", "drain", "11") == ["1111", "1199"]
    assert complete(connected, monkeypatch, "nodes", "drain", "zz") == []


def test_flags_before_the_node_are_heeded(
    corral: Any, frontend: Any, make_node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend.tell_nodes(make_node("alpha", "1111"))
    assert complete(corral, monkeypatch, "nodes", "show", "--url", frontend.url, "al") == ["alpha"]


def test_models_of_galleries_are_offered_for_a_pull(
    connected: Any, frontend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def entry(name: str) -> GalleryModelView:
        return GalleryModelView(id=f"own@{name}", name=name, gallery="own")

    found = GalleryModelList(items=[entry("qwen"), entry("my-qwen")], total=2, page=1, pages=1, galleries=[])
    frontend.tell("GET /api/v1/gallery-models", found)
    assert complete(connected, monkeypatch, "models", "pull", "qw") == ["qwen"]
    assert frontend.calls[0].path == "/api/v1/gallery-models?term=qw&per_page=50"


_OF_MODELS = ("show", "remove", "edit", "history", "rollback", "copy", "export", "disable", "enable", "pin", "unpin")


@pytest.mark.parametrize("words", [("chat",), ("run",), *(("models", command) for command in _OF_MODELS)])
def test_models_are_offered_by_their_names(
    connected: Any, frontend: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    def model(name: str) -> ModelView:
        return ModelView(name=name, backend="echo", model="", revision="", source="x.yaml", state="cold")

    frontend.tell("GET /api/v1/models", ModelList(items=[model("small"), model("large")]))
    assert complete(connected, monkeypatch, *words, "s") == ["small"]
    frontend.tell("GET /api/v1/models", {"error": "no"}, 401)
    assert complete(connected, monkeypatch, *words, "s") == []


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:9", "nonsense"])
def test_nothing_is_said_when_there_is_no_frontend(corral: Any, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("CORRAL_URL", url)
    assert complete(corral, monkeypatch, "nodes", "show", "al") == []


def test_nothing_is_said_when_the_frontend_refuses(
    connected: Any, frontend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend.tell("GET /api/v1/nodes", {"error": "no"}, 401)
    assert complete(connected, monkeypatch, "nodes", "show", "al") == []


def test_commands_are_offered_but_not_the_hidden_one(corral: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    offered = complete(corral, monkeypatch, "")
    assert "up" in offered
    assert "control" not in offered
