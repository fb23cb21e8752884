"""The `anthropic` package. It knows no embeddings and no speech, and looks at models and messages itself."""

from typing import Any

import anthropic
import cases

client = anthropic.Anthropic(base_url=cases.URL, api_key=cases.KEY, max_retries=0, timeout=100)
BAD = anthropic.BadRequestError
TOOLS: list[Any] = [{"name": "look", "description": "d", "input_schema": cases.SCHEMA}]
PICTURE: list[Any] = [
    {
        "role": "user",
        "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": cases.PIXEL}},
            {"type": "text", "text": "What is this?"},
        ],
    }
]


COLD = {"temperature": 0}
"""For answers that are the same each time."""


def ask(**more: Any) -> Any:
    body = COLD | more.pop("extra_body", {})
    return client.messages.create(
        **({"model": cases.CHAT, "messages": cases.ASKED, "max_tokens": 30} | more), extra_body=body
    )


def text_of(answer: Any) -> str:
    return "".join(part.text for part in answer.content)


@cases.case
def chat() -> None:
    cases.check("Paris" in text_of(ask()))


@cases.case
def stream() -> None:
    with client.messages.stream(model=cases.CHAT, messages=cases.ASKED, max_tokens=30, extra_body=COLD) as events:
        cases.check("Paris" in "".join(events.text_stream))


@cases.case
def stream_that_begins_with_an_emoji() -> None:
    """Its first character takes several tokens."""
    asked: list[Any] = [{"role": "user", "content": "Reply with 👩🌍 only: 👩🌍👩🌍👩🌍👩🌍"}]
    with client.messages.stream(model=cases.CHAT, messages=asked, max_tokens=10, extra_body=COLD) as events:
        cases.check(text_of(events.get_final_message()).startswith("👩"))


@cases.case
def models() -> None:
    listed = {model.id: model for model in client.models.list(limit=1000)}
    cases.check(listed[cases.CHAT].created_at.year > 2000, listed)
    cases.check(client.models.retrieve(cases.CHAT).display_name == cases.CHAT)


@cases.case
def cancel() -> None:
    story: list[Any] = [{"role": "user", "content": "Tell me a very long story about a horse."}]
    with client.messages.stream(model=cases.CHAT, messages=story, max_tokens=450) as events:
        next(iter(events.text_stream))
    cases.until_under_way(cases.CHAT, 0)


@cases.case
def tools() -> None:
    """Those of this route go to llama.cpp only, and the model has no template for them."""
    cases.refused(lambda: ask(tools=TOOLS), BAD, code="invalid_request_error", param="tools")


@cases.case
def counted_tokens() -> None:
    cases.check(client.messages.count_tokens(model=cases.CHAT, messages=cases.ASKED).input_tokens > 10)


@cases.case
def chat_with_a_backend_that_only_speaks_grpc() -> None:
    answer = ask(model=cases.ECHO, system=[{"type": "text", "text": "be kind"}])
    cases.check(text_of(answer) == cases.ASKED[-1]["content"])
    cases.check((answer.stop_reason, answer.usage.output_tokens > 0) == ("end_turn", True))
    cases.check(client.messages.count_tokens(model=cases.ECHO, messages=cases.ASKED).input_tokens > 0)


@cases.case
def stream_of_a_backend_that_only_speaks_grpc() -> None:
    with client.messages.stream(model=cases.ECHO, messages=cases.ASKED, max_tokens=30) as events:
        said = "".join(events.text_stream)
        whole = events.get_final_message()
    cases.check(said == text_of(whole) == cases.ASKED[-1]["content"])
    cases.check(whole.usage.input_tokens > 0)


@cases.case
def tools_of_a_backend_that_only_speaks_grpc() -> None:
    """The backend `echo` calls a tool that is named; the result goes back to it."""
    named: Any = {"type": "tool", "name": "look"}
    with client.messages.stream(
        model=cases.ECHO, messages=cases.ASKED, max_tokens=30, tools=TOOLS, tool_choice=named
    ) as events:
        whole = events.get_final_message()
    [use] = [block for block in whole.content if block.type == "tool_use"]
    cases.check((whole.stop_reason, use.name, use.input) == ("tool_use", "look", {"text": cases.ASKED[-1]["content"]}))
    heard = [
        *cases.ASKED,
        {"role": "assistant", "content": whole.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "a horse"}]},
    ]
    cases.check(ask(model=cases.ECHO, messages=heard, tools=TOOLS).stop_reason == "end_turn")


@cases.case
def faults_for_a_backend_that_only_speaks_grpc() -> None:
    for more, param in (
        ({"messages": []}, "messages"),
        ({"tools": [{"description": "no name"}]}, "tools"),
        ({"tools": [{"name": "bash", "type": "bash_20250124"}]}, "tools"),
        ({"extra_body": {"temperature": 2.5}}, "temperature"),
    ):
        cases.refused(lambda more=more: ask(model=cases.ECHO, **more), BAD, code="invalid_request_error", param=param)


@cases.case
def context_length() -> None:
    cases.refused(lambda: ask(messages=cases.LONG), BAD, code="invalid_request_error", param="context size")


@cases.case
def picture_to_a_text_model() -> None:
    cases.refused(lambda: ask(messages=PICTURE), BAD, code="invalid_request_error", param="image input")


@cases.case
def chat_to_an_embedding_model() -> None:
    cases.refused(lambda: ask(model=cases.EMBED), BAD, code="invalid_request_error", param="embeddings")


@cases.case
def malformed_tools() -> None:
    cases.refused(lambda: ask(tools=[{"description": "no name"}]), BAD, code="invalid_request_error", param="tools")


@cases.case
def empty_messages() -> None:
    cases.refused(lambda: ask(messages=[]), BAD, code="invalid_request_error", param="messages")


@cases.case
def temperature() -> None:
    cases.refused(lambda: ask(extra_body={"temperature": 2.5}), BAD, code="invalid_request_error", param="temperature")


@cases.case
def nulls() -> None:
    cases.check("Paris" in text_of(ask(extra_body={"system": None, "tools": None, "stop_sequences": None})))


cases.run()
