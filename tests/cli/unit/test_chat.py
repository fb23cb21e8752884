"""`corral chat`: a talk that goes on, an answer that can be stopped, and codes that scripts understand."""

import io
import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import click
import msgspec
import pytest

from corral.cli.models.chat import load_text
from corral.wire.models import LoadJobView, ModelList, ModelView
from corral.wire.replicas import ReplicaView

ROUTE = "POST /v1/chat/completions"


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


def answer(*parts: str) -> bytes:
    return b"".join(map(event, parts)) + b'data: {"choices":[],"usage":{}}\n\ndata: [DONE]\n\n'


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What the person types; then Ctrl-D."""

    def type_in(*lines: str) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))

    return type_in


def talks(frontend: Any) -> list[list[dict[str, str]]]:
    return [call.body["messages"] for call in frontend.calls]


def test_once_prints_the_answer_and_nothing_else(connected: Any, frontend: Any) -> None:
    frontend.tell(ROUTE, answer("Par", "is", "."))
    outcome = connected("chat", "small", "--once", "capital of France?", "--system", "Be brief.")

    assert (outcome.code, outcome.out, outcome.err) == (0, "Paris.\n", "")
    assert frontend.calls[0].body == {
        "model": "small",
        "stream": True,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "capital of France?"},
        ],
    }


@pytest.mark.parametrize("command", ["chat", "run"])
def test_wishes_for_words_are_passed_on_and_else_left_to_the_model(connected: Any, frontend: Any, command: str) -> None:
    frontend.tell(
        "GET /api/v1/models",
        ModelList(
            items=[ModelView(name="small", backend="llama-cpp", model="w.gguf", revision="1", source="", state="cold")]
        ),
    )
    frontend.tell(ROUTE, answer("Paris."))
    assert connected(command, "small", "capital?", "--temperature", "0", "--seed", "7").code == 0
    assert connected(command, "small", "capital?").code == 0
    wished, plain = (call.body for call in frontend.calls if call.method == "POST")
    assert (wished["temperature"], wished["seed"]) == (0, 7)
    assert not {"temperature", "seed"} & plain.keys()


def test_a_temperature_out_of_range_is_refused(connected: Any, frontend: Any) -> None:
    outcome = connected("chat", "small", "capital?", "--temperature", "3")
    assert (outcome.code, frontend.calls) == (64, [])
    assert "--temperature" in outcome.err


@pytest.mark.parametrize("text", ["", "  "])
def test_once_needs_a_text(connected: Any, frontend: Any, text: str) -> None:
    outcome = connected("chat", "small", "--once", text)
    assert (outcome.code, frontend.calls) == (64, [])
    assert "--once needs a text to ask" in outcome.err


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (401, "An authentication key is required", 77),
        (403, "it needs the scope inference", 77),
        (404, "the model 'smal' does not exist; did you mean small?", 1),
        (400, "the body is odd", 1),
        (503, "model small is loading on node w1", 69),
        (502, "the replica failed", 69),
    ],
)
def test_once_ends_with_a_code_that_tells(connected: Any, frontend: Any, status: int, message: str, code: int) -> None:
    frontend.tell(ROUTE, {"error": {"message": message, "code": "x"}}, status)
    outcome = connected("chat", "small", "--once", "hi")
    assert (outcome.code, outcome.out) == (code, "")
    assert status == 401 or message in outcome.err
    assert "Traceback" not in outcome.err


def test_an_error_inside_the_stream_is_an_error(connected: Any, frontend: Any) -> None:
    frontend.tell(ROUTE, event("Par") + b'data: {"error":{"message":"out of memory"}}\n\n')
    outcome = connected("chat", "small", "--once", "hi")
    assert (outcome.code, outcome.out) == (1, "Par")
    assert "out of memory" in outcome.err


def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one(connected: Any, frontend: Any) -> None:
    frontend.tell(ROUTE, event("Par"))
    outcome = connected("chat", "small", "--once", "hi")
    assert outcome.code == 69
    assert "the answer broke off before its end" in outcome.err


def test_no_frontend_is_code_69(corral: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_URL", "http://127.0.0.1:9")
    assert corral("chat", "small", "--once", "hi").code == 69


def test_what_a_model_writes_cannot_take_over_the_terminal(connected: Any, frontend: Any) -> None:
    frontend.tell(ROUTE, answer("a\x1b[2Jb\r\x07\n\tc"))
    assert connected("chat", "small", "--once", "hi").out == "a\ufffd[2Jb\ufffd\ufffd\n\tc\n"


def test_odd_events_are_passed_over(connected: Any, frontend: Any) -> None:
    odd = b'data: {"choices":[{"delta":{}}]}\n\n: beat\n\ndata: nonsense\n\ndata: []\n\n'
    frontend.tell(ROUTE, odd + answer("fine"))
    assert connected("chat", "small", "--once", "hi").out == "fine\n"


# A talk.


def test_a_talk_remembers_what_was_said(connected: Any, frontend: Any, says: Any) -> None:
    frontend.tell(ROUTE, answer("one"))
    says("first", "", "   ", "second")
    outcome = connected("chat", "small")

    assert outcome.code == 0
    assert outcome.out.count("one\n") == 2
    assert talks(frontend) == [
        [{"role": "user", "content": "first"}],
        [
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "one"},
            {"role": "user", "content": "second"},
        ],
    ]


def test_the_end_of_the_input_ends_the_talk(connected: Any, frontend: Any, says: Any) -> None:
    says()
    assert connected("chat", "small").code == 0
    assert frontend.calls == []


def test_a_question_without_an_answer_is_told_and_forgotten(connected: Any, frontend: Any, says: Any) -> None:
    frontend.tell(ROUTE, {"error": {"message": "model small is loading on node w1"}}, 503)
    says("first", "second")
    outcome = connected("chat", "small")

    assert outcome.code == 0
    assert outcome.err.count("model small is loading on node w1") == 2
    assert talks(frontend) == [[{"role": "user", "content": "first"}], [{"role": "user", "content": "second"}]]


def test_a_model_that_is_not_there_ends_the_talk(connected: Any, frontend: Any, says: Any) -> None:
    frontend.tell(ROUTE, {"error": {"message": "the model 'smal' does not exist"}}, 404)
    says("first", "second")
    outcome = connected("chat", "smal")
    assert (outcome.code, len(frontend.calls)) == (1, 1)


class Endless:
    """The first answer begins, or not even that, and never ends until the client leaves; later ones are short."""

    def __init__(self) -> None:
        self.talks: list[list[dict[str, str]]] = []
        self.begins = True
        self.shown = threading.Event()
        self.left = threading.Event()
        self.url = ""

    def interrupt(self) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endless]:
    found = Endless()
    echo = click.echo

    def tell(message: str = "", **options: Any) -> None:
        echo(message, **options)
        if message == "a long story":
            found.shown.set()

    monkeypatch.setattr("corral.cli.models.chat.click.echo", tell)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.talks.append(body["messages"])
            if len(found.talks) > 1 or found.begins:
                self.send_response(200)
                self.end_headers()
            if len(found.talks) > 1:
                self.wfile.write(answer("short"))
                return
            if found.begins:
                self.wfile.write(event("a long story"))
                self.wfile.flush()
                assert found.shown.wait(60)
            found.interrupt()
            self._until_left()
            found.left.set()

        def _until_left(self) -> None:
            """Python notices a signal that came just before it began to wait only when the wait is over."""
            with suppress(ConnectionError):
                self.wfile.write(b": beat\n\n" if found.begins else b"HTTP/1.0 200 OK\r\n\r\n")
                self.wfile.flush()
                self.connection.settimeout(60)
                assert self.connection.recv(1) == b""

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def test_an_interrupt_stops_the_answer_and_not_the_talk(
    corral: Any, endless: Endless, says: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_URL", endless.url)
    monkeypatch.setenv("CORRAL_KEY", "k")
    says("tell me", "and now?")
    outcome = corral("chat", "small")

    assert outcome.code == 0
    assert "a long story [stopped]\n" in outcome.out
    assert "short\n" in outcome.out
    assert endless.left.wait(60)
    assert endless.talks[1] == [
        {"role": "user", "content": "tell me"},
        {"role": "assistant", "content": "a long story"},
        {"role": "user", "content": "and now?"},
    ]


def test_an_interrupt_before_the_first_word_is_no_answer(
    corral: Any, endless: Endless, says: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_URL", endless.url)
    endless.begins = False
    says("tell me", "and now?")
    outcome = corral("chat", "small")

    assert outcome.code == 0
    assert " [stopped]\n" in outcome.out
    assert endless.left.wait(60)
    assert endless.talks[1] == [{"role": "user", "content": "and now?"}]


def test_an_interrupt_ends_a_single_question(corral: Any, endless: Endless, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_URL", endless.url)
    monkeypatch.setenv("CORRAL_KEY", "k")
    assert corral("chat", "small", "--once", "tell me").code == 130
    assert endless.left.wait(60)


# What only a person at a terminal sees.


@pytest.fixture
def types(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What the person types on a terminal; then Ctrl-D."""

    def type_in(*lines: str) -> None:
        typed = io.StringIO("".join(f"{line}\n" for line in lines))
        monkeypatch.setattr(typed, "isatty", lambda: True)
        monkeypatch.setattr("sys.stdin", typed)

    return type_in


def test_a_pipe_gets_no_prompt_and_its_lines_are_asked_as_they_are(connected: Any, frontend: Any, says: Any) -> None:
    frontend.tell(ROUTE, answer("one"))
    says("first", "/help")
    assert connected("chat", "small").out == "one\none\n"
    assert talks(frontend)[1][-1] == {"role": "user", "content": "/help"}


def test_a_terminal_has_commands(connected: Any, frontend: Any, types: Any) -> None:
    frontend.tell(ROUTE, answer("one"))
    types("/help", "/hlep", "/etc/passwd is what?", "/bye", "never asked")
    outcome = connected("chat", "small")
    assert outcome.code == 0
    assert "/bye   end the talk" in outcome.out
    assert "There is no command /hlep; /help lists them." in outcome.out
    assert talks(frontend) == [[{"role": "user", "content": "/etc/passwd is what?"}]]


def model(**load: Any) -> ModelView:
    replica = ReplicaView(
        id="r", node_id="n", node="w1", index=0, state="loading", revision="", address="", url="", created_at="",
        changed_at="",
    )  # fmt: skip
    job = LoadJobView(state=load.pop("state", "loading"), failures=0, retry_at="", **load)
    names = {"name": "small", "backend": "b", "model": "m", "revision": "", "source": ""}
    return ModelView(**names, state=job.state, replicas=[replica], load_job=job)


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (model(state="pending", message="w1 has no room"), "small waits: w1 has no room"),
        (model(), "small is loading on w1"),
        (model(phase="loading", total_bytes=93 * 2**20), "small is loading on w1, 93.0 MiB"),
        (
            model(phase="downloading", current_bytes=2**20, total_bytes=4 * 2**20, eta_seconds=2.6),
            "small is downloading on w1, 1.0 MiB of 4.0 MiB, 3 s left",
        ),
        (msgspec.structs.replace(model(), load_job=None), ""),
    ],
)
def test_a_load_is_told_in_a_few_words(view: ModelView, text: str) -> None:
    assert load_text(view) == text


def test_a_terminal_shows_the_load_until_the_answer_begins(
    connected: Any, frontend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is held back until the line was written."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("corral.cli.models.chat._FIRST_LOOK_SECONDS", 0.0)
    frontend.tell(ROUTE, answer("Paris."))
    frontend.tell("GET /api/v1/models/small", model(phase="loading"))
    written = threading.Event()
    echo, reply = click.echo, frontend.answer

    def tell(message: str = "", **options: Any) -> None:
        echo(message, **options)
        if "small is loading on w1" in message:
            written.set()

    def held(call: Any) -> Any:
        assert call.method != "POST" or written.wait(60)
        return reply(call)

    monkeypatch.setattr("corral.cli.models.chat.click.echo", tell)
    monkeypatch.setattr(frontend, "answer", held)
    outcome = connected("chat", "small", "--once", "capital of France?")
    assert outcome.out == "Paris.\n"
    assert "small is loading on w1" in outcome.err
    assert outcome.err.endswith("\r\x1b[2K")


def test_a_key_that_may_not_see_models_shows_no_load_and_gets_its_answer(
    connected: Any, frontend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("corral.cli.models.chat._FIRST_LOOK_SECONDS", 0.0)
    frontend.tell(ROUTE, answer("Paris."))
    frontend.tell("GET /api/v1/models/small", {"error": {"message": "scope"}}, 403)
    outcome = connected("chat", "small", "--once", "hi")
    assert (outcome.code, outcome.out, outcome.err) == (0, "Paris.\n", "")


def test_a_frontend_that_does_not_say_how_far_the_load_is_delays_no_answer(
    connected: Any, frontend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked, and answers only after the chat was printed."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("corral.cli.models.chat._FIRST_LOOK_SECONDS", 0.0)
    frontend.tell(ROUTE, answer("Paris."))
    frontend.tell("GET /api/v1/models/small", model(phase="loading"))
    asked, printed, waited = threading.Event(), threading.Event(), list[bool]()
    reply = frontend.answer

    def held(call: Any) -> Any:
        if call.method == "POST":
            assert asked.wait(60)
        else:
            asked.set()
            waited.append(printed.wait(5))
        return reply(call)

    monkeypatch.setattr(frontend, "answer", held)
    outcome = connected("chat", "small", "--once", "capital of France?")
    printed.set()
    assert (outcome.out, outcome.err) == ("Paris.\n", "")
    assert waited in ([], [True])
