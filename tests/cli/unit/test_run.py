"""`corral run` with a fleet, and what it says without one. Starting a fleet is tested in tests/e2e."""

import io
import json
from typing import Any

import pytest

from corral.wire.models import ModelList, ModelView

CHAT = "POST /v1/chat/completions"


def model(name: str, **changes: Any) -> ModelView:
    return ModelView(name=name, backend="llama-cpp", model="w.gguf", revision="1", source="", state="cold", **changes)


def answer(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\ndata: [DONE]\n\n"


@pytest.fixture
def fleet(frontend: Any) -> Any:
    """With one model, which answers."""
    frontend.tell("GET /api/v1/models", ModelList(items=[model("small")]))
    frontend.tell(CHAT, answer("Paris."))
    return frontend


def asked(frontend: Any) -> list[Any]:
    return [call.body for call in frontend.calls if call.method == "POST"]


def test_a_prompt_gets_one_answer_and_standard_output_nothing_else(connected: Any, fleet: Any) -> None:
    outcome = connected("run", "small", "capital of France?", "--system", "Be brief.")
    assert (outcome.code, outcome.out, outcome.err) == (0, "Paris.\n", "")
    [body] = asked(fleet)
    assert (body["model"], [message["content"] for message in body["messages"]]) == (
        "small",
        ["Be brief.", "capital of France?"],
    )


def test_a_pipe_is_one_question(connected: Any, fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Summarise:\n\nA long text.\n"))
    assert connected("run", "small").out == "Paris.\n"
    assert [body["messages"] for body in asked(fleet)] == [
        [{"role": "user", "content": "Summarise:\n\nA long text.\n"}]
    ]


def test_an_empty_pipe_asks_nothing(connected: Any, fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    outcome = connected("run", "small")
    assert (outcome.code, outcome.out, asked(fleet)) == (0, "", [])


def test_an_empty_prompt_is_refused_before_anything_is_done(connected: Any, fleet: Any) -> None:
    assert connected("run", "small", " ").code == 64
    assert fleet.calls == []


def test_without_a_fleet_and_a_terminal_it_says_what_to_type(corral: Any) -> None:
    outcome = corral("run", "small", "hi")
    assert (outcome.code, outcome.out) == (69, "")
    assert "no frontend is known" in outcome.err
    assert "`corral run --up` starts it in the background" in outcome.err


def test_a_fleet_elsewhere_is_never_started_here(corral: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_URL", "http://127.0.0.1:9")
    outcome = corral("run", "small", "hi", "--up")
    assert outcome.code == 69
    assert "no answer from http://127.0.0.1:9" in outcome.err


def test_down_without_a_fleet_is_an_error(corral: Any) -> None:
    outcome = corral("down")
    assert outcome.code == 1
    assert "no `corral up` runs in" in outcome.err
