"""The official `openai` package against a real fleet: what it offers works, and mistakes come as its own errors."""

import base64
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.kit.models import CONTEXT, QUESTION
from tests.kit.processes import running_below, words_of
from tests.kit.waiting import wait_until

CLIENTS = 100
LARGEST_BODY = 32 * 1024 * 1024
ASKED: list[Any] = [{"role": "user", "content": QUESTION}]


def connect(up: Any, key: str) -> openai.OpenAI:
    """Without its own retries: a first failure is a failure."""
    return openai.OpenAI(base_url=up.state()["url"] + "/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture
def client(answering_up: Any) -> Iterator[openai.OpenAI]:
    with connect(answering_up, answering_up.state()["keys"]["admin"]) as connected:
        yield connected


def told(error: openai.APIStatusError) -> dict[str, Any]:
    """The error object that the package found, whose shape is OpenAI's."""
    assert isinstance(error.body, dict)
    assert {"message", "type", "code"} <= error.body.keys()
    assert isinstance(error.body["message"], str)
    assert error.body["message"]
    return error.body


class TestWhatWorks:
    def test_models_are_listed_and_shown(self, client: openai.OpenAI) -> None:
        assert [model.id for model in client.models.list()] == ["chat", "cold", "embed"]
        shown = client.models.retrieve("chat")
        assert (shown.id, shown.object) == ("chat", "model")

    def test_a_chat_is_answered(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(model="chat", messages=ASKED, temperature=0, seed=1, max_tokens=40)
        [choice] = answer.choices
        assert "Paris" in (choice.message.content or "")
        assert (choice.finish_reason, answer.model, choice.message.role) == ("stop", "chat", "assistant")
        assert answer.usage is not None
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens

    def test_a_streamed_chat_says_that_paris_is_the_capital_of_france(self, client: openai.OpenAI) -> None:
        with client.chat.completions.create(
            model="chat",
            messages=ASKED,
            temperature=0,
            seed=1,
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        ) as stream:
            events = list(stream)

        pieces = [event.choices[0].delta.content for event in events if event.choices]
        said = [piece for piece in pieces if piece]
        assert "Paris" in "".join(said)
        assert "capital of France" in "".join(said)
        assert len(said) > 3, "it came in one piece"
        assert events[-1].usage is not None
        assert events[-1].usage.completion_tokens >= len(said)

    def test_a_text_is_completed_at_once_and_streamed(self, client: openai.OpenAI) -> None:
        wanted: dict[str, Any] = {"model": "chat", "prompt": "The capital of France is", "max_tokens": 8}
        whole = client.completions.create(**wanted, temperature=0, seed=1)
        with client.completions.create(**wanted, temperature=0, seed=1, stream=True) as stream:
            streamed = "".join(event.choices[0].text for event in stream if event.choices)
        assert "Paris" in whole.choices[0].text
        assert streamed == whole.choices[0].text

    def test_embeddings_come_as_numbers_and_as_base64_and_are_the_same(self, client: openai.OpenAI) -> None:
        texts = ["a horse", "a stable for horses"]
        numbers = client.embeddings.create(model="embed", input=texts, encoding_format="float")
        packed = client.embeddings.create(model="embed", input=texts, encoding_format="base64")
        decoded = client.embeddings.create(model="embed", input=texts)  # asks for base64, and unpacks it

        assert [item.index for item in numbers.data] == [0, 1]
        assert numbers.usage.prompt_tokens > 0
        for plain, raw, own in zip(numbers.data, packed.data, decoded.data, strict=True):
            text: Any = raw.embedding
            values = struct.unpack(f"<{len(plain.embedding)}f", base64.b64decode(text))
            assert list(values) == pytest.approx(plain.embedding, abs=1e-6)
            assert own.embedding == pytest.approx(plain.embedding, abs=1e-6)
        assert numbers.data[0].embedding != numbers.data[1].embedding

    def test_a_long_prompt_reaches_the_engine(self, client: openai.OpenAI) -> None:
        """220 KB: the engine itself counts its tokens, so the body came there whole."""
        messages: list[Any] = [{"role": "user", "content": "word " * 44_000}]
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="chat", messages=messages)
        counted = told(refused.value)["n_prompt_tokens"]
        assert 44_000 <= counted < 44_100


class TestMistakes:
    def test_an_unknown_model_is_not_found_and_near_names_are_offered(self, client: openai.OpenAI) -> None:
        calls = [
            lambda: client.models.retrieve("chatt"),
            lambda: client.chat.completions.create(model="chatt", messages=ASKED),
            lambda: client.completions.create(model="chatt", prompt="x"),
            lambda: client.embeddings.create(model="chatt", input="x"),
        ]
        for call in calls:
            with pytest.raises(openai.NotFoundError) as refused:
                call()
            assert told(refused.value) == {
                "message": "the model 'chatt' does not exist; did you mean chat?",
                "type": "invalid_request_error",
                "param": "model",
                "code": "model_not_found",
            }

    @pytest.mark.parametrize(
        ("content", "code", "param"),
        [
            (b'{"model": "chat", "messages": [', "invalid_json", None),
            (b'{"model": "chat"}}', "invalid_json", None),
            (b'["chat"]', "invalid_body", None),
            (b'{"messages": []}', "missing_model", "model"),
            (b'{"model": 7, "messages": []}', "invalid_type", "model"),
            (b"", "invalid_json", None),
        ],
        ids=["cut off", "too much", "no object", "no model", "model of another type", "nothing"],
    )
    def test_a_body_that_cannot_be_read_is_a_bad_request(
        self, client: openai.OpenAI, content: bytes, code: str, param: str | None
    ) -> None:
        with pytest.raises(openai.BadRequestError) as refused:
            client.post("/chat/completions", cast_to=object, content=content)
        error = told(refused.value)
        assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)

    @pytest.mark.parametrize(
        ("wrong", "named"),
        [
            ({"messages": "no list"}, "messages"),
            ({"messages": [{"role": "user", "content": 5}]}, "content"),
            ({"temperature": "hot"}, "temperature"),
            ({"max_tokens": "many"}, "max_tokens"),
            ({"stream": "yes"}, "stream"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_a_wrong_type_is_a_bad_request_that_names_it(
        self, client: openai.OpenAI, wrong: dict[str, Any], named: str
    ) -> None:
        with pytest.raises(openai.BadRequestError) as refused:
            client.post("/chat/completions", cast_to=object, body={"model": "chat", "messages": ASKED, **wrong})
        error = told(refused.value)
        assert error["type"] == "invalid_request_error"
        assert named in error["message"]

    @pytest.mark.parametrize(
        ("more", "param"),
        [
            ({"tool_choice": "required"}, "tool_choice"),
            ({"tool_choice": {"type": "function", "function": {"name": "look"}}}, "tool_choice"),
            ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
            ({"logit_bias": {"5": "much"}}, "logit_bias"),
            ({"web_search_options": {}}, "web_search_options"),
            ({"grammar": 5}, "grammar"),
        ],
    )
    def test_what_the_engine_would_drop_is_a_bad_request_that_names_it(
        self, client: openai.OpenAI, more: dict[str, Any], param: str
    ) -> None:
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="chat", messages=ASKED, extra_body=more)
        assert told(refused.value)["param"] == param

    def test_what_the_engine_misses_is_a_bad_request(self, client: openai.OpenAI) -> None:
        for path, model, named in [("/chat/completions", "chat", "messages"), ("/completions", "chat", "prompt")]:
            with pytest.raises(openai.BadRequestError) as refused:
                client.post(path, cast_to=object, body={"model": model})
            assert named in told(refused.value)["message"]

    @pytest.mark.parametrize("stream", [False, True])
    def test_more_than_the_context_holds_is_a_bad_request(self, client: openai.OpenAI, stream: bool) -> None:
        messages: list[Any] = [{"role": "user", "content": "word " * (2 * CONTEXT)}]
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="chat", messages=messages, stream=stream)
        error = told(refused.value)
        assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
        assert f"context size ({CONTEXT} tokens)" in error["message"]

    def test_a_body_over_the_limit_is_refused(self, client: openai.OpenAI) -> None:
        messages: list[Any] = [{"role": "user", "content": "x" * LARGEST_BODY}]
        with pytest.raises(openai.APIStatusError) as refused:
            client.chat.completions.create(model="chat", messages=messages)
        assert refused.value.status_code == 413
        assert told(refused.value)["code"] == "body_too_large"

    def test_a_wrong_key_is_an_authentication_error(self, answering_up: Any) -> None:
        with connect(answering_up, "corral_nobody-has-this-one") as stranger:
            for call in (
                lambda: stranger.models.list(),
                lambda: stranger.chat.completions.create(model="chat", messages=ASKED),
            ):
                with pytest.raises(openai.AuthenticationError) as refused:
                    call()
                error = told(refused.value)
                assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")

    def test_a_key_of_another_scope_is_a_permission_error(self, answering_up: Any) -> None:
        made = answering_up.api("POST", "/api/v1/keys", {"name": "a gateway", "scopes": ["gateway"]})
        key = made.json()["key"]
        wait_until(lambda: answering_up.call("GET", "/v1/models", key=key).status != 401, "the key to be known")
        with connect(answering_up, key) as gateway, pytest.raises(openai.PermissionDeniedError) as refused:
            gateway.chat.completions.create(model="chat", messages=ASKED)
        error = told(refused.value)
        assert (error["type"], error["code"]) == ("permission_error", "missing_scope")
        assert answering_up.api("DELETE", f"/api/v1/keys/{made.json()['id']}").status == 204


def processes_of(up: Any, model: str) -> list[str]:
    """The programs below any worker that were started under the model's name."""
    workers = up.state()["pids"]["workers"]
    return [" ".join(words_of(process)) for worker in workers for process in running_below(worker, model)]


def test_a_hundred_first_requests_are_answered_by_one_load(answering_up: Any, client: openai.OpenAI) -> None:
    assert processes_of(answering_up, "cold") == []

    def ask(number: int) -> int:
        answer = client.completions.create(model="cold", prompt=f"{number}", max_tokens=1)
        return answer.usage.completion_tokens if answer.usage is not None else 0

    with ThreadPoolExecutor(CLIENTS) as everybody:
        tokens = list(everybody.map(ask, range(CLIENTS)))

    assert tokens == [1] * CLIENTS
    assert len(processes_of(answering_up, "cold")) == 1
    events = answering_up.api("GET", "/api/v1/events?limit=1000").json()
    about_it = [event["kind"] for event in events if event["data"].get("model") == "cold"]
    assert about_it == ["model.changed", "model.loaded"], "it was added and loaded, once each"
    shown = answering_up.api("GET", "/api/v1/models/cold").json()
    assert [replica["state"] for replica in shown["replicas"]] == ["loaded"], "those of the last day"
    assert shown["load_job"] is None
    assert answering_up.output.count("key=cold#0") == 1
