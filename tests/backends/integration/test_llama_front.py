"""llama.cpp's second port with a real model: requests that its own server drops or refuses."""

import asyncio
import base64
import json
import math
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from corral.rpc import errors
from corral.rpc.messages import Message, ModelOptions, PredictOptions
from tests.kit.backends import KEY, SOON, RunningBackend, running_backend
from tests.kit.models import QUESTION

CHAT = "/v1/chat/completions"
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 8, "temperature": 0}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@asynccontextmanager
async def loaded(file: Path, **more: Any) -> AsyncIterator[RunningBackend]:
    options = ModelOptions(Model="smol", ModelFile=str(file), ContextSize=512, Threads=1, MMap=True, **more)
    async with running_backend("llama_cpp") as backend:
        await backend.client.load(options, timeout=SOON)
        yield backend


async def post(backend: RunningBackend, path: str, body: Any, *, key: str = KEY) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(backend.front_url + path, json=body, headers=headers) as answer,
    ):
        return answer.status, await answer.text()


async def ask(backend: RunningBackend, path: str, body: Any) -> Any:
    status, text = await post(backend, path, body)
    assert status == 200, text
    return json.loads(text)


def events_of(text: str) -> list[Any]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def test_several_answers_on_one_slot(chat_model_file: Path) -> None:
    async with loaded(chat_model_file) as backend:
        answer = await ask(backend, CHAT, ASKED | {"n": 3, "temperature": 1.5, "seed": 4})
        said = [choice["message"]["content"] for choice in answer["choices"]]
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        assert len(set(said)) > 1, said
        one = await ask(backend, CHAT, ASKED)
        assert answer["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
        assert answer["usage"]["completion_tokens"] == 24

        wanted = ASKED | {"n": 2, "stream": True, "stream_options": {"include_usage": True}}
        status, text = await post(backend, CHAT, wanted)
        *events, counts = events_of(text)
        assert (status, text.endswith("data: [DONE]\n\n")) == (200, True)
        order = [event["choices"][0]["index"] for event in events]
        assert order == sorted(order)
        assert set(order) == {0, 1}
        assert len({event["id"] for event in events}) == 1
        parts = [
            "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"][0]["index"] == n)
            for n in (0, 1)
        ]
        assert parts == [one["choices"][0]["message"]["content"]] * 2
        assert counts["usage"]["completion_tokens"] == 16

        prompts = {"prompt": ["One two three", "Red green"], "n": 2, "echo": True, "max_tokens": 4, "temperature": 0}
        answer = await ask(backend, "/v1/completions", prompts)
        texts = [choice["text"] for choice in answer["choices"]]
        assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 16, "total_tokens": 21}
        assert [text[:3] for text in texts] == ["One", "One", "Red", "Red"]
        status, text = await post(backend, "/v1/completions", prompts | {"stream": True})
        streamed = ["", "", "", ""]
        for event in events_of(text):
            streamed[event["choices"][0]["index"]] += event["choices"][0]["text"]
        assert streamed == texts
        several = {"prompt": ["One two three", "Red green"], "max_tokens": 4, "temperature": 0, "stream": True}
        status, text = await post(backend, "/v1/completions", several)
        assert (status, "null\n" in text, text.endswith("data: [DONE]\n\n")) == (200, False, True)
        assert {event["choices"][0]["index"] for event in events_of(text)} == {0, 1}


async def test_a_response_is_of_the_format_that_was_asked_for_and_says_that_it_was_cut(chat_model_file: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    formed = {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}, "max_output_tokens": 200}
    asked = {"input": QUESTION, "temperature": 0}
    async with loaded(chat_model_file) as backend:
        answer = await ask(backend, "/v1/responses", asked | formed)
        assert isinstance(json.loads(answer["output"][0]["content"][0]["text"])["a"], bool)
        assert (answer["status"], answer["text"]) == ("completed", formed["text"])
        answer = await ask(backend, "/v1/responses", asked | {"max_output_tokens": 2})
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
        _, text = await post(backend, "/v1/responses", asked | {"max_output_tokens": 2, "stream": True})
        events = events_of(text)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[0]["response"]["output"] == []
        assert all("output_index" in event for event in events if "item" in event or "item_id" in event)
        assert all("content_index" in event for event in events if event["type"] == "response.output_text.delta")
        assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.incomplete", "incomplete")
        assert text.splitlines()[0] == "event: response.created"


async def test_a_message_that_ends_at_a_stop_sequence_says_so(chat_model_file: Path) -> None:
    asked = ASKED | {"stop_sequences": ["France"], "max_tokens": 30}
    async with loaded(chat_model_file) as backend:
        answer = await ask(backend, "/v1/messages", asked)
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "France")
        _, text = await post(backend, "/v1/messages", asked | {"stream": True})
        (end,) = [event["delta"] for event in events_of(text) if event["type"] == "message_delta"]
        assert (end["stop_reason"], end["stop_sequence"]) == ("stop_sequence", "France")


async def test_the_engine_takes_a_conversation_as_clients_tell_it(chat_model_file: Path) -> None:
    told = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}], "content": None},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": [{"type": "text", "text": "Who?"}]},
        {"type": "message", "role": "assistant", "id": "m", "content": [{"type": "refusal", "refusal": "No."}]},
        {"type": "function_call", "id": None, "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "it"}]},
        {"role": "user", "content": QUESTION},
    ]
    async with loaded(chat_model_file) as backend:
        answer = await ask(backend, "/v1/responses", {"input": told, "max_output_tokens": 16})
        assert answer["output"][0]["type"] == "message"


async def test_streams_begin_as_clients_expect_when_a_character_takes_several_tokens(chat_model_file: Path) -> None:
    asked = {"role": "user", "content": "Reply with 👩🌍 only: 👩🌍👩🌍👩🌍👩🌍"}
    async with loaded(chat_model_file) as backend:
        wish = {"messages": [asked], "max_tokens": 10, "temperature": 0, "stream": True}
        _, text = await post(backend, "/v1/messages", wish)
        events = events_of(text)
        assert [event["type"] for event in events[:3]] == [
            "message_start",
            "content_block_start",
            "content_block_delta",
        ]
        assert events[2]["delta"]["text"] == "👩"
        wish = {"input": [asked], "max_output_tokens": 10, "temperature": 0, "stream": True}
        _, text = await post(backend, "/v1/responses", wish)
        types = [event["type"] for event in events_of(text)]
        assert types[:2] == ["response.created", "response.in_progress"]
        assert types.count("response.created") == types.count("response.in_progress") == 1


async def test_nulls_reach_the_engine_as_what_was_not_given(chat_model_file: Path) -> None:
    nulls = dict.fromkeys(("name", "tool_call_id", "reasoning_content", "tool_calls"))
    async with loaded(chat_model_file) as backend:
        messages = [ASKED["messages"][0] | nulls]
        answer = await ask(backend, CHAT, ASKED | {"messages": messages, "tools": None, "stop": None})
        assert "Paris" in answer["choices"][0]["message"]["content"]
        status, text = await post(backend, CHAT, ASKED | {"messages": messages, "stream": True, "max_tokens": 20})
        assert (status, "Paris" in text, text.endswith("data: [DONE]\n\n")) == (200, True, True)


async def test_vectors_are_cut_and_of_length_one_again(chat_model_file: Path) -> None:
    async with loaded(chat_model_file, Embeddings=True) as backend:
        path = "/v1/embeddings"
        whole = await ask(backend, path, {"input": ["a horse", "a stable"], "encoding_format": None})
        cut = await ask(backend, path, {"input": ["a horse", "a stable"], "dimensions": 8})
        packed = await ask(backend, path, {"input": "a horse", "dimensions": 8, "encoding_format": "base64"})
        assert [len(item["embedding"]) for item in whole["data"]] == [576, 576]
        for item, full in zip(cut["data"], whole["data"], strict=True):
            kept = full["embedding"][:8]
            assert item["embedding"] == pytest.approx([number / math.hypot(*kept) for number in kept], abs=1e-5)
        numbers = struct.unpack("<8f", base64.b64decode(packed["data"][0]["embedding"]))
        assert numbers == pytest.approx(cut["data"][0]["embedding"], abs=1e-5)
        status, text = await post(backend, path, {"input": "a", "dimensions": 577})
        assert (status, json.loads(text)["error"]["param"]) == (400, "dimensions")


async def test_what_cannot_be_honoured_is_refused_by_name(chat_model_file: Path) -> None:
    async with loaded(chat_model_file) as backend:
        for path, body, param in [
            (CHAT, ASKED | {"tools": TOOLS}, "tools"),
            ("/v1/responses", {"input": "hi", "tools": [{"type": "function", "name": "look"}]}, "tools"),
            (CHAT, ASKED | {"functions": TOOLS}, "functions"),
            ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
            (CHAT, [], "body"),
            (CHAT, ASKED | {"tool_choice": "required"}, "tool_choice"),
            ("/v1/responses", {"input": ""}, "input"),
            ("/v1/messages", ASKED | {"tool_choice": {"type": "any"}}, "tool_choice"),
            ("/v1/messages/count_tokens", {"messages": [{"content": [{"type": "x"}]}]}, "messages[0].content[0].type"),
        ]:
            status, text = await post(backend, path, body)
            assert (status, json.loads(text)["error"]["param"]) == (400, param)
        assert (await post(backend, CHAT, ASKED, key="other"))[0] == 401
        status, text = await post(
            backend, CHAT, ASKED | {"n": 2, "messages": [{"role": "user", "content": "x " * 2000}]}
        )
        assert (status, "context size" in text) == (400, True)
        with pytest.raises(errors.RequestRefused, match="no place for tools"):
            await backend.client.predict(
                PredictOptions(
                    UseTokenizerTemplate=True,
                    Messages=[Message(role="user", content="hi")],
                    Tools=json.dumps(TOOLS),
                    ModelIdentity="smol",
                )
            )


async def test_a_client_that_leaves_frees_the_slot(chat_model_file: Path) -> None:
    async with loaded(chat_model_file) as backend, aiohttp.ClientSession() as session:
        endless = ASKED | {"n": 100, "max_tokens": 400, "ignore_eos": True, "stream": True}
        headers = {"Authorization": f"Bearer {KEY}"}
        async with session.post(backend.front_url + CHAT, json=endless, headers=headers) as answer:
            await answer.content.readline()
        async with asyncio.timeout(SOON.total_seconds()):
            await ask(backend, CHAT, ASKED)


@pytest.mark.parametrize("port", ["http", "front"])
async def test_a_port_that_another_program_took_before_the_load_ends_the_process(
    chat_model_file: Path, port: str
) -> None:
    """Unlike a model that cannot be loaded: a new process, with other ports, loads it."""
    async with running_backend("llama_cpp") as backend:
        url = urlsplit(backend.http_url if port == "http" else backend.front_url)
        with socket.create_server((str(url.hostname), int(url.port or 0))):
            with pytest.raises(errors.BackendGone, match=f"cannot listen at {url.netloc}: Address already in use"):
                await backend.client.load(ModelOptions(Model="smol", ModelFile=str(chat_model_file)), timeout=SOON)
            async with asyncio.timeout(SOON.total_seconds()):
                assert await backend.process.wait() == 0


async def test_ollamas_requests_are_answered_in_its_form(chat_model_file: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    asked = {"model": "smol:latest", "messages": ASKED["messages"], "options": {"num_predict": 4, "temperature": 0}}
    async with loaded(chat_model_file) as backend:
        known = await ask(backend, CHAT, ASKED | {"max_tokens": 4})
        whole = await ask(backend, "/api/chat", asked | {"stream": False})
        assert whole["message"] == {"role": "assistant", "content": known["choices"][0]["message"]["content"]}
        assert (whole["model"], whole["done_reason"], whole["eval_count"]) == ("smol:latest", "length", 4)
        status, text = await post(backend, "/api/chat", asked)
        *lines, end = [json.loads(line) for line in text.splitlines()]
        assert (status, "".join(line["message"]["content"] for line in lines)) == (200, whole["message"]["content"])
        assert (end["done"], end["prompt_eval_count"]) == (True, known["usage"]["prompt_tokens"])
        formed = await ask(backend, "/api/chat", {**asked, "stream": False, "format": schema, "options": {}})
        assert isinstance(json.loads(formed["message"]["content"])["a"], bool)
        raw = {"prompt": "One two three", "raw": True, "stream": False, "options": {"num_predict": 2}}
        assert (await ask(backend, "/api/generate", raw))["eval_count"] == 2
        assert (await ask(backend, "/api/generate", {}))["done_reason"] == "load"
        for more, param in (({"tools": TOOLS}, "tools"), ({"options": {"num_predict": 0}}, "options.num_predict")):
            status, text = await post(backend, "/api/chat", asked | more)
            assert (status, json.loads(text)["error"]["param"]) == (400, param)
        too_long = {"messages": [{"role": "user", "content": "word " * 2000}]}
        assert (await post(backend, "/api/chat", asked | too_long))[0] == 400
    async with loaded(chat_model_file, Embeddings=True) as backend:
        one = (await ask(backend, "/v1/embeddings", {"input": "a cat"}))["data"][0]["embedding"]
        many = await ask(backend, "/api/embed", {"input": ["a cat", "a dog"]})
        assert many["embeddings"][0] == pytest.approx(one, abs=1e-3)
        assert (len(many["embeddings"]), many["prompt_eval_count"] > 0) == (2, True)
        assert len((await ask(backend, "/api/embed", {"input": "a cat", "dimensions": 4}))["embeddings"][0]) == 4
        assert (await ask(backend, "/api/embeddings", {"prompt": "a cat"}))["embedding"] == pytest.approx(one, abs=1e-3)
