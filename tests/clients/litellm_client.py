"""The `litellm` package, which reads errors of providers and makes its own of them."""

from typing import Any

import litellm
import openai
from cases import (
    ASKED,
    CHAT,
    ECHO,
    EMBED,
    KEY,
    LONG,
    MALFORMED,
    NAMED,
    NULLS,
    PICTURE,
    SLOW,
    TOOLS,
    URL,
    check,
    refused,
    run,
    until_under_way,
)

litellm.num_retries = 0
litellm.suppress_debug_info = True
PLACE: dict[str, Any] = {"api_base": f"{URL}/v1", "api_key": KEY, "timeout": 100, "max_retries": 0}
BAD = litellm.BadRequestError


def ask(model: str = CHAT, **more: Any) -> Any:
    asked = {"model": f"openai/{model}", "messages": ASKED, "temperature": 0, "max_tokens": 30}
    return litellm.completion(**(asked | more), **PLACE)


def chat() -> None:
    check("Paris" in ask().choices[0].message.content)


def stream() -> None:
    check("Paris" in "".join(event.choices[0].delta.content or "" for event in ask(stream=True)))


def cancel() -> None:
    events = ask(SLOW, stream=True, max_tokens=400)
    next(iter(events))
    until_under_way(SLOW, 1)
    events.completion_stream.response.close()
    until_under_way(SLOW, 0)


def tools() -> None:
    call = ask(ECHO, tools=TOOLS, tool_choice=NAMED).choices[0].message.tool_calls[0]
    check(call.function.name == "listen", call)


def tools_of_a_model_without() -> None:
    refused(lambda: ask(tools=TOOLS), BAD, code="tools", param="no place for tools")


def embeddings() -> None:
    answer = litellm.embedding(model=f"openai/{EMBED}", input=["a horse"], encoding_format="float", **PLACE)
    check(len(answer.data[0]["embedding"]) == 576)


def context_length() -> None:
    """It is known as what it is, so that routers can try a model with a longer context."""
    refused(lambda: ask(messages=LONG), litellm.ContextWindowExceededError, code="context", param="context size")


def picture_to_a_text_model() -> None:
    refused(lambda: ask(messages=PICTURE), BAD, code="image input", param="not supported")


def chat_to_an_embedding_model() -> None:
    refused(lambda: ask(EMBED), BAD, code="embeddings", param="not for chat")


def speech_from_a_chat_model() -> None:
    """Here it raises the error of the package below it."""
    refused(
        lambda: litellm.speech(model=f"openai/{CHAT}", voice="nova", input="hi", **PLACE),
        openai.BadRequestError,
        code="speech",
        param=CHAT,
    )


def malformed_tools() -> None:
    refused(lambda: ask(tools=MALFORMED), BAD, code="tools", param="name")


def empty_messages() -> None:
    refused(lambda: ask(messages=[]), BAD, code="messages", param="must not be empty")


def temperature() -> None:
    refused(lambda: ask(temperature=2.5), BAD, code="temperature", param="between 0 and 2")


def nulls() -> None:
    check("Paris" in ask(messages=NULLS, extra_body={"tools": None}).choices[0].message.content)


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
        "speech from a chat model": speech_from_a_chat_model,
        "malformed tools": malformed_tools,
        "empty messages": empty_messages,
        "temperature": temperature,
        "nulls": nulls,
    }
)
