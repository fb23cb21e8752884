"""The `langchain-openai` package. It knows no speech."""

from typing import Any

import openai
from cases import (
    ASKED,
    CHAT,
    ECHO,
    EMBED,
    KEY,
    LONG,
    MALFORMED,
    PICTURE,
    SLOW,
    TOOLS,
    URL,
    check,
    refused,
    run,
    until_under_way,
)
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

PLACE: dict[str, Any] = {"base_url": f"{URL}/v1", "api_key": KEY, "max_retries": 0}
BAD = openai.BadRequestError


def model(name: str = CHAT, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(**({"model": name, "temperature": 0, "max_tokens": 30, "timeout": 100} | more), **PLACE)


def chat() -> None:
    check("Paris" in str(model().invoke(ASKED).content))


def stream() -> None:
    check("Paris" in "".join(str(part.content) for part in model().stream(ASKED)))


def cancel() -> None:
    parts = model(SLOW, max_tokens=400).stream(ASKED)
    next(parts)
    until_under_way(SLOW, 1)
    parts.close()  # type: ignore[attr-defined]
    until_under_way(SLOW, 0)


def tools() -> None:
    (call,) = model(ECHO).bind_tools(TOOLS, tool_choice="listen").invoke(ASKED).tool_calls
    check(call["name"] == "listen", call)


def tools_of_a_model_without() -> None:
    refused(lambda: model().bind_tools(TOOLS).invoke(ASKED), BAD, code="unsupported_by_model", param="tools")


def embeddings() -> None:
    """It may send tokens instead of texts, which no other model knows: told not to."""
    one = OpenAIEmbeddings(model=EMBED, check_embedding_ctx_length=False, **PLACE)
    check([len(vector) for vector in one.embed_documents(["a horse", "a stable"])] == [576, 576])
    cut = OpenAIEmbeddings(model=EMBED, check_embedding_ctx_length=False, dimensions=8, **PLACE)
    check(len(cut.embed_query("a horse")) == 8)


def context_length() -> None:
    refused(lambda: model().invoke(LONG), BAD, code="context_length_exceeded", param="messages")


def picture_to_a_text_model() -> None:
    refused(lambda: model().invoke(PICTURE), BAD, code="unsupported_content", param="messages")


def chat_to_an_embedding_model() -> None:
    refused(lambda: model(EMBED).invoke(ASKED), BAD, code="unsupported_by_model", param="model")


def malformed_tools() -> None:
    refused(lambda: model().invoke(ASKED, tools=MALFORMED), BAD, code="invalid_value", param="tools")


def empty_messages() -> None:
    refused(lambda: model().invoke([]), BAD, code="invalid_value", param="messages")


def temperature() -> None:
    refused(lambda: model(temperature=2.5).invoke(ASKED), BAD, code="invalid_value", param="temperature")


run(
    {
        "chat": chat,
        "stream": stream,
        "cancel": cancel,
        "tools": tools,
        "tools of a model without": tools_of_a_model_without,
        "embeddings": embeddings,
        "context length": context_length,
        "picture to a text model": picture_to_a_text_model,
        "chat to an embedding model": chat_to_an_embedding_model,
        "malformed tools": malformed_tools,
        "empty messages": empty_messages,
        "temperature": temperature,
    }
)
