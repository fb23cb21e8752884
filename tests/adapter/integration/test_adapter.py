"""OpenAI's API before a backend that only speaks gRPC: real processes on both sides."""

import asyncio
import base64
import json
import math
import struct
from typing import Any

import aiohttp
import pytest

from corral.adapter.replicas import KeyUnknown, ServedReplicas
from corral.base.errors import ChildFailed
from corral.rpc.messages import StatusResponse
from corral.wire.adapter import MODEL_GONE_STATUS, AdapterModel, AdapterReplica, PromptTemplates
from tests.kit.backends import SOON

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
HELLO = {"model": "echo-model", "messages": [{"role": "user", "content": "hello brave new world"}]}
ASKED = {"model": "echo-model", "input": "hello brave new world"}


def events_of(text: str) -> list[Any]:
    return [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n") if event.startswith("data: {")]


async def test_a_chat_is_answered_whole(served: Any) -> None:
    status, answer = await served.ask(CHAT, HELLO)
    assert status == 200
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "echo-model"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "hello brave new world"}
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8}


async def test_a_chat_is_streamed_event_by_event(served: Any) -> None:
    body = HELLO | {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 3}
    async with served.post(CHAT, body) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        text = await answer.text()
    events = events_of(text)
    assert text.endswith("data: [DONE]\n\n")
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"][0]["delta"].get("content") for event in events[1:4]] == ["hello", " brave", " new"]
    assert events[4]["choices"][0]["finish_reason"] == "length"
    assert events[5]["usage"]["completion_tokens"] == 3
    assert len({event["id"] for event in events}) == 1


async def test_anthropics_messages_are_answered(served: Any) -> None:
    body = HELLO | {"max_tokens": 3, "system": "be kind"}
    status, whole = await served.ask(MESSAGES, body)
    assert (status, whole["type"], whole["model"]) == (200, "message", "echo-model")
    assert whole["content"] == [{"type": "text", "text": "hello brave new"}]
    assert (whole["stop_reason"], whole["usage"]["output_tokens"]) == ("max_tokens", 3)
    async with served.post(MESSAGES, body | {"stream": True}) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        events = [json.loads(line[6:]) for line in (await answer.text()).splitlines() if line.startswith("data: ")]
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert deltas == ["hello", " brave", " new"]
    assert events[-2]["usage"] == whole["usage"]
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"


async def test_tokens_of_anthropics_messages_are_counted(served: Any) -> None:
    status, one = await served.ask(f"{MESSAGES}/count_tokens", HELLO)
    _, more = await served.ask(f"{MESSAGES}/count_tokens", HELLO | {"system": "be kind"})
    assert (status, 0 < one["input_tokens"] < more["input_tokens"]) == (200, True)
    status, refused = await served.ask(f"{MESSAGES}/count_tokens", {"messages": []})
    assert (status, refused["error"]["param"]) == (400, "messages")


async def test_a_failure_in_a_stream_of_messages_is_told_as_anthropic_does(served: Any) -> None:
    await served.load("error_after:2")
    async with served.post(MESSAGES, HELLO | {"stream": True}) as answer:
        *_, last = (await answer.text()).strip().split("\n\n")
    name, data = last.split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "api_error"


def typed_events_of(text: str) -> list[Any]:
    """Events whose names are the types of their documents, and whose numbers have no gaps."""
    events = []
    for event in text.strip().split("\n\n"):
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


async def test_openais_responses_are_answered(served: Any) -> None:
    body = ASKED | {"max_output_tokens": 3, "instructions": "be kind", "metadata": {"a": "b"}}
    status, whole = await served.ask(RESPONSES, body)
    assert (status, whole["object"], whole["model"]) == (200, "response", "echo-model")
    [item] = whole["output"]
    assert (item["role"], item["content"][0]["text"], item["status"]) == ("assistant", "hello brave new", "incomplete")
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (whole["instructions"], whole["metadata"]) == ("be kind", {"a": "b"})
    async with served.post(RESPONSES, body | {"stream": True}) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        events = typed_events_of(await answer.text())
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert deltas == ["hello", " brave", " new"]
    assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.incomplete")
    assert events[-1]["response"]["usage"] == whole["usage"]
    assert len({event["response"]["id"] for event in events if "response" in event} | {whole["id"]}) == 2
    _, whole = await served.ask(RESPONSES, ASKED)
    assert whole["status"] == "completed"
    assert whole["completed_at"] >= whole["created_at"]


async def test_a_tool_is_called_in_a_response_and_its_result_is_heard(served: Any) -> None:
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("f", "g")]
    asked = {"tools": tools, "tool_choice": {"type": "function", "name": "g"}, "parallel_tool_calls": False}
    _, whole = await served.ask(RESPONSES, ASKED | asked)
    [call] = whole["output"]
    assert (call["type"], call["name"], whole["status"]) == ("function_call", "g", "completed")
    assert json.loads(call["arguments"]) == {"text": "hello brave new world"}
    async with served.post(RESPONSES, ASKED | asked | {"stream": True}) as answer:
        *_, last = typed_events_of(await answer.text())
    assert last["response"]["output"][0]["arguments"] == call["arguments"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "5"}
    heard = [{"role": "user", "content": ASKED["input"]}, *whole["output"], result]
    _, whole = await served.ask(RESPONSES, {"input": heard, "tools": tools})
    assert whole["output"][0]["content"][0]["text"] == "hello brave new world"


async def test_faulty_requests_for_responses_are_refused_by_field(served: Any) -> None:
    for more, param in (
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format.type"),
        ({"max_tokens": 3}, "max_tokens"),
    ):
        status, answer = await served.ask(RESPONSES, ASKED | more)
        error = answer["error"]
        assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)


async def test_tools_of_a_response_that_no_template_has_a_place_for_are_refused(served: Any) -> None:
    await served.tell("k6", AdapterModel(name="m", identity="m.bin", templates=PromptTemplates(chat="{{.Input}}")))
    status, answer = await served.ask(RESPONSES, ASKED | {"tools": [{"type": "function", "name": "f"}]}, key="k6")
    assert (status, answer["error"]["param"]) == (400, "tools")


async def test_a_failure_in_a_stream_of_a_response_is_an_error_and_its_end(served: Any) -> None:
    await served.load("error_after:2")
    async with served.post(RESPONSES, ASKED | {"stream": True}) as answer:
        *_, error, failed = typed_events_of(await answer.text())
    assert (error["type"], error["code"], error["error"]["message"]) == ("error", "backend_failed", error["message"])
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["output"][0]["content"][0]["text"] == "hello brave"


async def test_completions_answer_every_prompt(served: Any) -> None:
    status, answer = await served.ask("/v1/completions", {"prompt": ["a b", "c"]})
    assert status == 200
    assert [(one["index"], one["text"]) for one in answer["choices"]] == [(0, "a b"), (1, "c")]
    async with served.post("/v1/completions", {"prompt": ["a b", "c"], "stream": True}) as streamed:
        events = events_of(await streamed.text())
    texts = [(event["choices"][0]["index"], event["choices"][0]["text"]) for event in events]
    assert texts == [(0, "a"), (0, " b"), (0, ""), (1, "c"), (1, "")]


async def test_edits_answer_every_text(served: Any) -> None:
    status, answer = await served.ask("/v1/edits", {"instruction": "say", "input": ["a b", "c"]})
    assert (status, answer["object"]) == (200, "edit")
    assert answer["choices"] == [{"index": 0, "text": "say a b"}, {"index": 1, "text": "say c"}]
    assert answer["usage"]["total_tokens"] == 10
    status, refused = await served.ask("/v1/edits", {"input": "a"})
    assert (status, refused["error"]["param"]) == (400, "instruction")


async def test_embeddings_come_as_numbers_or_in_base64(served: Any) -> None:
    _, plain = await served.ask("/v1/embeddings", {"input": ["one", "two"]})
    _, packed = await served.ask("/v1/embeddings", {"input": ["one", "two"], "encoding_format": "base64"})
    for one, other in zip(plain["data"], packed["data"], strict=True):
        numbers = struct.unpack("<8f", base64.b64decode(other["embedding"]))
        assert list(numbers) == pytest.approx(one["embedding"])
    _, tokens = await served.ask("/v1/embeddings", {"input": [1, 2, 3]})
    assert len(tokens["data"]) == 1


async def test_vectors_are_cut_and_of_length_one_again(served: Any) -> None:
    _, whole = await served.ask("/v1/embeddings", {"input": "one"})
    status, cut = await served.ask("/v1/embeddings", {"input": "one", "dimensions": 3, "encoding_format": None})
    assert status == 200
    kept, vector = whole["data"][0]["embedding"][:3], cut["data"][0]["embedding"]
    assert math.hypot(*vector) == pytest.approx(1)
    assert vector == pytest.approx([number / math.hypot(*kept) for number in kept])
    for wrong in (0, 9):
        status, answer = await served.ask("/v1/embeddings", {"input": "one", "dimensions": wrong})
        assert (status, answer["error"]["param"]) == (400, "dimensions")


async def test_several_answers_come_one_after_another(served: Any) -> None:
    _, answer = await served.ask(CHAT, HELLO | {"n": 3})
    assert [one["index"] for one in answer["choices"]] == [0, 1, 2]
    assert {one["message"]["content"] for one in answer["choices"]} == {"hello brave new world"}
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 12, "total_tokens": 16}
    body = HELLO | {"n": 2, "stream": True, "stream_options": {"include_usage": True}}
    async with served.post(CHAT, body) as streamed:
        *events, counts = events_of(await streamed.text())
    said = [(choice["index"], choice["delta"].get("content")) for event in events for choice in event["choices"]]
    assert said[:2] == [(0, ""), (0, "hello")]
    assert [index for index, _ in said] == [0] * 6 + [1] * 6
    assert counts["usage"] == answer["usage"] | {"completion_tokens": 8, "total_tokens": 12}


async def test_a_named_tool_is_called_and_its_answer_is_heard(served: Any) -> None:
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("f", "g")]
    named = {"type": "function", "function": {"name": "g"}}
    _, answer = await served.ask(CHAT, HELLO | {"tools": tools, "tool_choice": named})
    (choice,) = answer["choices"]
    call = choice["message"]["tool_calls"][0]
    assert (choice["finish_reason"], call["function"]["name"]) == ("tool_calls", "g")
    assert json.loads(call["function"]["arguments"]) == {"text": "hello brave new world"}
    heard = [*HELLO["messages"], choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "5"}]
    _, answer = await served.ask(CHAT, {"messages": heard, "tools": tools})
    assert answer["choices"][0]["message"]["content"] == "hello brave new world"
    status, answer = await served.ask(CHAT, HELLO | {"grammar": 'root ::= "a"'})
    assert (status, "grammar" in answer["error"]["message"]) == (400, True)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_picture_for_a_model_that_takes_none_is_a_bad_request(served: Any, stream: bool) -> None:
    """`echo` would answer as if there were none."""
    await served.tell("k2", AdapterModel(name="m", identity="m.bin", use_tokenizer_template=True, takes_no_media=True))
    url, source = "data:image/png;base64,QUJD", {"type": "base64", "media_type": "image/png", "data": "QUJD"}
    picture = {"type": "image_url", "image_url": {"url": url}}
    shown = {"type": "input_image", "image_url": url, "detail": "auto"}
    for path, body, param in (
        (CHAT, {"messages": [{"role": "user", "content": [picture]}]}, "messages"),
        ("/v1/responses", {"input": [{"role": "user", "content": [shown]}]}, "input"),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]},
            "messages",
        ),
    ):
        status, answer = await served.ask(path, body | {"stream": stream}, key="k2")
        error = answer["error"]
        assert (status, error["code"], error["param"]) == (400, "unsupported_content", param)
        assert error["message"] == "image input is not supported by this model"


async def test_a_completion_begins_with_its_prompt_if_that_is_wanted(served: Any) -> None:
    wanted = {"prompt": ["a b", "c"], "echo": True, "n": 2}
    _, answer = await served.ask("/v1/completions", wanted)
    assert [(one["index"], one["text"]) for one in answer["choices"]] == [
        (0, "a ba b"),
        (1, "a ba b"),
        (2, "cc"),
        (3, "cc"),
    ]
    async with served.post("/v1/completions", wanted | {"stream": True}) as streamed:
        events = events_of(await streamed.text())
    texts = [
        "".join(e["choices"][0]["text"] for e in events if e["choices"][0]["index"] == index) for index in range(4)
    ]
    assert texts == ["a ba b", "a ba b", "cc", "cc"]


async def test_without_the_tokenizers_template_we_render_the_prompt(served: Any) -> None:
    templates = PromptTemplates(chat_message="<{{.RoleName}}> {{.Content}}", chat="{{.Input}} <assistant>")
    await served.tell("k2", AdapterModel(name="rendered", identity="m.bin", templates=templates))
    _, answer = await served.ask(CHAT, HELLO, key="k2")
    assert answer["choices"][0]["message"]["content"] == "<user> hello brave new world <assistant>"
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    _, answer = await served.ask(CHAT, {"messages": [{"role": "user", "content": [picture]}]}, key="k2")
    assert answer["choices"][0]["message"]["content"] == "<user> <__media__> <assistant>"


async def test_tools_of_a_model_with_a_template_for_them_are_called(served: Any) -> None:
    """`echo` calls the first of them, with its prompt."""
    templates = PromptTemplates(function="{{range .Functions}}{{.Name}} {{end}}{{.Input}}", no_action_disabled=True)
    await served.tell("k3", AdapterModel(name="rendered", identity="m.bin", templates=templates))
    wanted = HELLO | {"tools": [{"type": "function", "function": {"name": "f"}}]}
    called = {"name": "f", "arguments": '{"text": "f hello brave new world"}'}
    _, answer = await served.ask(CHAT, wanted, key="k3")
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == called
    async with served.post(CHAT, wanted | {"stream": True}, key="k3") as streamed:
        choices = [event["choices"][0] for event in events_of(await streamed.text())]
    assert [call["function"] for one in choices for call in one["delta"].get("tool_calls", ())] == [called]
    assert choices[-1]["finish_reason"] == "tool_calls"


async def test_answers_begin_with_what_the_model_says(served: Any) -> None:
    await served.tell("k5", AdapterModel(name="m", identity="m.bin", reply_prefix="<think>"))
    _, answer = await served.ask(CHAT, HELLO, key="k5")
    assert answer["choices"][0]["message"]["content"] == "<think>hello brave new world"
    _, answer = await served.ask("/v1/completions", {"prompt": "a", "echo": True}, key="k5")
    assert answer["choices"][0]["text"] == "a<think>a"
    for path, body, texts in (
        (CHAT, HELLO, lambda choice: choice["delta"].get("content", "")),
        ("/v1/completions", {"prompt": "a"}, lambda choice: choice["text"]),
    ):
        async with served.post(path, body | {"stream": True}, key="k5") as streamed:
            whole = "".join(texts(event["choices"][0]) for event in events_of(await streamed.text()))
        assert whole.startswith("<think>")
        assert whole.count("<think>") == 1


async def test_a_template_that_fails_is_named_to_the_client(served: Any) -> None:
    await served.tell("k4", AdapterModel(name="m", templates=PromptTemplates(chat="\n{{index .Metadata 1}}")))
    status, answer = await served.ask(CHAT, HELLO, key="k4")
    error = answer["error"]
    assert (status, error["code"], error["type"]) == (400, "template_failed", "invalid_request_error")
    assert error["message"].startswith("template chat, line 2, {{index .Metadata 1}}: ")


async def test_what_the_backend_cannot_do_is_said_so(served: Any) -> None:
    status, answer = await served.ask("/v1/rerank", {"query": "q", "documents": ["a"]})
    error = answer["error"]
    assert (status, error["code"], error["param"]) == (400, "unsupported_by_model", "model")
    assert error["type"] == "invalid_request_error"
    status, answer = await served.ask("/v1/rerank", {"query": "q", "documents": []})
    assert (status, answer["error"]["param"]) == (400, "documents")


BAD: list[tuple[Any, str | None]] = [
    (b"{", None),
    (b"\xff", None),
    ({}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": 3}, "messages"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    (HELLO | {"temperature": "hot"}, "temperature"),
    (HELLO | {"n": 0}, "n"),
    (HELLO | {"temperature": 3}, "temperature"),
    (HELLO | {"max_tokens": 0}, "max_tokens"),
    (HELLO | {"tools": [{}]}, "tools[0].type"),
    (HELLO | {"functions": []}, "functions"),
    (HELLO | {"modalities": ["audio"]}, "modalities"),
    (HELLO | {"max_tokens": 2**40}, "max_tokens"),
    (HELLO | {"response_format": {"type": "json_object"}}, "response_format"),
    ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages.content.type"),
]


async def test_bad_requests_are_refused_in_openais_shape(served: Any) -> None:
    for body, param in BAD:
        status, answer = await served.ask(CHAT, body)
        assert status == 400, body
        assert answer["error"]["type"] == "invalid_request_error"
        assert answer["error"]["param"] == param
        assert answer["error"]["message"]


async def test_a_key_that_nobody_gave_is_refused(served: Any) -> None:
    assert (await served.ask(CHAT, HELLO, key="other"))[0] == 401
    await served.adapter.link.forget("k1")
    assert (await served.ask(CHAT, HELLO))[0] == 401


def test_a_key_of_arbitrary_bytes_is_one_that_nobody_gave() -> None:
    with pytest.raises(KeyUnknown):
        ServedReplicas().find(b"\xff".decode(errors="surrogateescape"))


@pytest.mark.parametrize(
    ("options", "status"), [(["error_after:0"], 502), (["crash_after:0"], 503), (["hang_after:0"], None)]
)
async def test_a_failure_before_the_first_token_has_a_status(
    served_alone: Any, options: list[str], status: int | None
) -> None:
    await served_alone.load(*options)
    if status is None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), served_alone.post(CHAT, HELLO | {"stream": True}):
                pass
        return
    got, answer = await served_alone.ask(CHAT, HELLO | {"stream": True})
    assert (got, answer["error"]["type"]) == (status, "server_error")
    assert served_alone.echo.address not in answer["error"]["message"]


async def test_a_model_that_is_not_loaded_and_another_one_are_told_by_their_status(served: Any) -> None:
    await served.tell("k2", AdapterModel(name="other", identity="other.bin"))
    status, answer = await served.ask(CHAT, HELLO, key="k2")
    assert (status, answer["error"]["code"]) == (MODEL_GONE_STATUS, "other_model_loaded")
    await served.echo.client.free(timeout=SOON)
    status, answer = await served.ask(CHAT, HELLO)
    assert (status, answer["error"]["code"]) == (MODEL_GONE_STATUS, "model_not_loaded")


async def test_a_failure_mid_stream_is_told_in_the_stream(served: Any) -> None:
    await served.load("error_after:2")
    async with served.post(CHAT, HELLO | {"stream": True}) as answer:
        assert answer.status == 200
        text = await answer.text()
    assert "[DONE]" not in text
    assert events_of(text)[-1]["error"]["code"] == "backend_failed"


async def test_a_client_that_goes_ends_its_own_call_and_no_other(served: Any) -> None:
    await served.load("hang_after:1")
    async with served.post(CHAT, HELLO | {"stream": True}) as stays:
        assert b"assistant" in await stays.content.readline()
        for _ in range(5):
            async with served.post(CHAT, HELLO | {"stream": True}) as goes:
                await goes.content.readline()
                goes.close()
        await until(served, in_flight=1)
        assert not stays.content.at_eof()
        assert (await served.echo.client.status(timeout=SOON)).state == StatusResponse.BUSY
        stays.close()
    await until(served, in_flight=0)
    async with asyncio.timeout(SOON.total_seconds()):
        while (await served.echo.client.status(timeout=SOON)).state != StatusResponse.READY:
            pass


async def until(served: Any, *, in_flight: int) -> None:
    async with asyncio.timeout(SOON.total_seconds()):
        while await served.in_flight() != in_flight:
            pass


async def test_telling_a_replica_again_does_not_disturb_its_requests(served: Any) -> None:
    await served.load("hang_after:1")
    async with served.post(CHAT, HELLO | {"stream": True}) as under_way:
        await under_way.content.readline()
        await served.tell("k1")
        assert await served.in_flight() == 1
        await served.tell("k1", token="another")
        rest = await under_way.text()
        assert events_of(rest)[-1]["error"]["code"] == "backend_gone"


async def test_many_clients_at_once_are_all_answered(served: Any) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(served.ask(CHAT, HELLO)) for _ in range(100)]
    assert {task.result()[0] for task in tasks} == {200}
    assert await served.in_flight() == 0


async def test_the_adapter_ends_with_its_parents_descriptor_and_at_sigterm(served: Any) -> None:
    served.adapter.process.terminate()
    assert await served.adapter.process.wait() == 0
    replica = AdapterReplica(key="k", address="127.0.0.1:1", model=AdapterModel(name="x"))
    with pytest.raises(ChildFailed):
        await served.adapter.link.serve(replica)
    with pytest.raises(aiohttp.ClientConnectorError):
        await served.ask(CHAT, HELLO)


def lines_of(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


async def test_ollamas_chats_are_answered_line_by_line(served: Any) -> None:
    async with served.post("/api/chat", HELLO | {"options": {"num_predict": 3}}) as answer:
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        *lines, end = lines_of(await answer.text())
    assert [line["message"]["content"] for line in lines] == ["hello", " brave", " new"]
    assert (end["done"], end["done_reason"], end["prompt_eval_count"], end["eval_count"]) == (True, "length", 4, 3)
    status, whole = await served.ask("/api/chat", HELLO | {"stream": False})
    assert (status, whole["model"], whole["done"]) == (200, "echo-model", True)
    assert whole["message"] == {"role": "assistant", "content": "hello brave new world"}
    assert (await served.ask("/api/chat", HELLO | {"format": "xml"}))[0] == 400
    for nothing in ({"messages": []}, {"messages": None}):
        status, loaded = await served.ask("/api/chat", HELLO | nothing)
        assert (status, loaded["done_reason"], loaded["message"]["content"]) == (200, "load", "")


async def test_ollamas_texts_are_answered(served: Any) -> None:
    asked = {"model": "echo-model", "prompt": "hello brave", "stream": False}
    for more in ({}, {"raw": True}):
        assert (await served.ask("/api/generate", asked | more))[1]["response"] == "hello brave"
    async with served.post("/api/generate", asked | {"stream": True}) as answer:
        assert [line["response"] for line in lines_of(await answer.text())] == ["hello", " brave", ""]
    assert (await served.ask("/api/generate", {"model": "echo-model"}))[1]["done_reason"] == "load"


async def test_a_failure_in_ollamas_lines_is_the_last_one(served: Any) -> None:
    await served.load("error_after:2")
    async with served.post("/api/chat", HELLO) as answer:
        assert answer.status == 200
        *_, last = lines_of(await answer.text())
    assert list(last) == ["error"]
    assert "error_after" in last["error"]


async def test_vectors_are_given_as_ollama_does(served: Any) -> None:
    _, one = await served.ask("/v1/embeddings", ASKED)
    vector = one["data"][0]["embedding"]
    text = ASKED["input"]
    _, many = await served.ask("/api/embed", {"model": "echo-model", "input": [text, text]})
    assert (many["embeddings"], many["model"]) == ([vector, vector], "echo-model")
    _, cut = await served.ask("/api/embed", ASKED | {"dimensions": 2})
    assert len(cut["embeddings"][0]) == 2
    assert (await served.ask("/api/embeddings", {"prompt": text}))[1] == {"embedding": vector}
    assert (await served.ask("/api/embed", {"input": []}))[0] == 400
