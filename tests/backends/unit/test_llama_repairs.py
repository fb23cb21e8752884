"""How answers of llama.cpp's `/v1/responses` and `/v1/messages` are completed."""

import importlib
from typing import Any

MESSAGE = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": []}
START = {"type": "message_start", "message": {"id": "chatcmpl-1"}}
CALL = {"type": "function_call", "call_id": "fc_1", "name": "look", "arguments": "{}"}


def responding(**asked: Any) -> Any:
    module: Any = importlib.import_module("llama_repairs")
    return module.ResponseRepair({"model": "m", "input": "hi", **asked}, 1794990000)


def messaging() -> Any:
    module: Any = importlib.import_module("llama_repairs")
    return module.MessageRepair("m", "msg_1")


def finished(output_tokens: int) -> dict[str, Any]:
    usage = {"input_tokens": 9, "output_tokens": output_tokens}
    return {"id": "resp_1", "object": "response", "status": "completed", "output": [MESSAGE], "usage": usage}


def test_every_event_has_its_number_and_its_place() -> None:
    repair = responding(instructions="be brief")
    events = [
        {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}},
        {"type": "response.output_item.added", "item": {**MESSAGE, "status": "in_progress"}},
        {"type": "response.content_part.added", "item_id": "msg_1", "part": {"type": "output_text", "text": ""}},
        {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "Hi"},
        {"type": "response.output_item.added", "item": CALL},
        {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "delta": "{}"},
        {"type": "response.output_item.done", "item": MESSAGE},
        {"type": "response.output_item.done", "item": CALL},
    ]
    completed = [one for event in events for one in repair.events(event)]
    assert [event["sequence_number"] for event in completed] == list(range(9))
    assert [event.get("output_index") for event in completed] == [None, 0, 0, 0, 1, 1, 0, 1, 1]
    assert [event.get("content_index") for event in completed] == [None, None, 0, 0, *[None] * 5]
    assert completed[4]["item"]["id"] == completed[8]["item"]["id"] == "fc_1"
    assert completed[2]["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert completed[3]["logprobs"] == []
    called = completed[7]
    assert (called["type"], called["item_id"]) == ("response.function_call_arguments.done", "fc_1")
    assert (called["name"], called["arguments"]) == ("look", "{}")
    created = completed[0]["response"]
    assert (created["id"], created["output"], created["instructions"]) == ("resp_1", [], "be brief")
    assert (created["model"], created["created_at"], created["tools"]) == ("m", 1794990000, [])


def test_the_last_event_says_whether_the_answer_was_cut() -> None:
    (whole,) = responding(max_output_tokens=8).events({"type": "response.completed", "response": finished(7)})
    assert (whole["type"], whole["response"]["status"]) == ("response.completed", "completed")
    (cut,) = responding(max_output_tokens=8).events({"type": "response.completed", "response": finished(8)})
    assert (cut["type"], cut["response"]["status"]) == ("response.incomplete", "incomplete")
    assert cut["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert cut["response"]["output"][0]["status"] == "incomplete"
    assert MESSAGE["status"] == "completed"


def test_a_whole_answer_says_it_too_and_ends_with_the_counts() -> None:
    answer = responding(max_output_tokens=8).whole(finished(8))
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert list(answer)[-1] == "usage"
    assert answer["usage"]["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}
    assert answer["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}
    assert responding(max_output_tokens=8.0).whole(finished(8))["status"] == "incomplete"
    assert responding().whole(finished(8))["status"] == "completed"


def test_a_stop_sequence_is_the_reason_of_the_end() -> None:
    repair = messaging()
    assert repair.events(START) == [START]
    end = {"stop_reason": "end_turn", "stop_sequence": "x"}
    assert repair.whole({"content": [], **end})["stop_reason"] == "stop_sequence"
    (told,) = repair.events({"type": "message_delta", "delta": end})
    assert told["delta"]["stop_reason"] == "stop_sequence"
    natural = {"stop_reason": "end_turn", "stop_sequence": None}
    assert repair.whole(natural) == natural
    assert repair.events({"type": "message_stop"}) == [{"type": "message_stop"}]


def test_a_message_that_the_engine_does_not_begin_is_begun() -> None:
    repair, block = messaging(), {"type": "content_block_start", "index": 0}
    begun, same = repair.events(block)
    assert (begun["type"], same) == ("message_start", block)
    message = begun["message"]
    assert (message["id"], message["model"], message["role"], message["content"]) == ("msg_1", "m", "assistant", [])
    assert message["usage"] == {"input_tokens": 0, "output_tokens": 0}
    assert repair.events(block) == [block]
    failure = {"type": "error", "error": {"type": "api_error", "message": "x"}}
    assert messaging().events(failure) == [failure]


def test_the_use_of_a_tool_begins_with_empty_input() -> None:
    repair = messaging()
    repair.events(START)
    use = {"type": "tool_use", "id": "toolu_1", "name": "look"}
    begin = {"type": "content_block_start", "index": 0, "content_block": use}
    assert repair.events(begin) == [{**begin, "content_block": {**use, "input": {}}}]


def test_a_response_begins_once() -> None:
    repair = responding()
    beginnings = [{"type": f"response.{name}", "response": {"id": "r"}} for name in ("created", "in_progress")]
    delta = {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "x"}
    told = [one for event in [*beginnings, delta, *beginnings, delta] for one in repair.events(event)]
    assert [one["type"].removeprefix("response.") for one in told] == [
        "created",
        "in_progress",
        "output_text.delta",
        "output_text.delta",
    ]
    assert [one["sequence_number"] for one in told] == [0, 1, 2, 3]
