"""The `anthropic` package. It knows no embeddings and no speech, and looks at models and messages itself."""

from typing import Any

import anthropic
from cases import ASKED, CHAT, EMBED, KEY, LONG, PIXEL, SCHEMA, URL, check, refused, run, until_under_way

client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0, timeout=100)
BAD = anthropic.BadRequestError
TOOLS: list[Any] = [{"name": "look", "description": "d", "input_schema": SCHEMA}]
PICTURE: list[Any] = [
    {
        "role": "user",
        "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
            {"type": "text", "text": "What is this?"},
        ],
    }
]


COLD = {"temperature": 0}
"""For answers that are the same each time."""


def ask(**more: Any) -> Any:
    body = COLD | more.pop("extra_body", {})
    return client.messages.create(**({"model": CHAT, "messages": ASKED, "max_tokens": 30} | more), extra_body=body)


def text_of(answer: Any) -> str:
    return "".join(part.text for part in answer.content)


def chat() -> None:
    check("Paris" in text_of(ask()))


def stream() -> None:
    with client.messages.stream(model=CHAT, messages=ASKED, max_tokens=30, extra_body=COLD) as events:
        check("Paris" in "".join(events.text_stream))


def cancel() -> None:
    story: list[Any] = [{"role": "user", "content": "Tell me a very long story about a horse."}]
    with client.messages.stream(model=CHAT, messages=story, max_tokens=450) as events:
        next(iter(events.text_stream))
    until_under_way(CHAT, 0)


def tools() -> None:
    """Those of this route go to llama.cpp only, and the model has no template for them."""
    refused(lambda: ask(tools=TOOLS), BAD, code="invalid_request_error", param="tools")


def counted_tokens() -> None:
    check(client.messages.count_tokens(model=CHAT, messages=ASKED).input_tokens > 10)


def context_length() -> None:
    refused(lambda: ask(messages=LONG), BAD, code="invalid_request_error", param="context size")


def picture_to_a_text_model() -> None:
    refused(lambda: ask(messages=PICTURE), BAD, code="invalid_request_error", param="image input")


def chat_to_an_embedding_model() -> None:
    refused(lambda: ask(model=EMBED), BAD, code="invalid_request_error", param="embeddings")


def malformed_tools() -> None:
    refused(lambda: ask(tools=[{"description": "no name"}]), BAD, code="invalid_request_error", param="tools")


def empty_messages() -> None:
    refused(lambda: ask(messages=[]), BAD, code="invalid_request_error", param="messages")


def temperature() -> None:
    refused(lambda: ask(extra_body={"temperature": 2.5}), BAD, code="invalid_request_error", param="temperature")


def nulls() -> None:
    check("Paris" in text_of(ask(extra_body={"system": None, "tools": None, "stop_sequences": None})))


run(
    {
        "chat": chat,
        "stream": stream,
        "cancel": cancel,
        "tools": tools,
        "counted tokens": counted_tokens,
        "context length": context_length,
        "picture to a text model": picture_to_a_text_model,
        "chat to an embedding model": chat_to_an_embedding_model,
        "malformed tools": malformed_tools,
        "empty messages": empty_messages,
        "temperature": temperature,
        "nulls": nulls,
    }
)
