"""The `openai` package."""

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

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=100)
BAD = openai.BadRequestError


def ask(**more: Any) -> Any:
    return client.chat.completions.create(
        **({"model": CHAT, "messages": ASKED, "temperature": 0, "max_tokens": 30} | more)
    )


def chat() -> None:
    check("Paris" in ask().choices[0].message.content)


def stream() -> None:
    with ask(stream=True) as events:
        check("Paris" in "".join(event.choices[0].delta.content or "" for event in events if event.choices))


def cancel() -> None:
    with ask(model=SLOW, stream=True, max_tokens=400) as events:
        next(iter(events))
        until_under_way(SLOW, 1)
    until_under_way(SLOW, 0)


def tools() -> None:
    call = ask(model=ECHO, tools=TOOLS, tool_choice=NAMED).choices[0].message.tool_calls[0]
    check(call.function.name == "listen", call)


def tools_of_a_model_without() -> None:
    refused(lambda: ask(tools=TOOLS), BAD, code="unsupported_by_model", param="tools")


def embeddings() -> None:
    answer = client.embeddings.create(model=EMBED, input=["a horse", "a stable"])
    check([len(item.embedding) for item in answer.data] == [576, 576])


def dimensions() -> None:
    (item,) = client.embeddings.create(model=EMBED, input="a horse", dimensions=8).data
    check(len(item.embedding) == 8 and abs(sum(x * x for x in item.embedding) - 1) < 1e-3, item)


def several_answers() -> None:
    check([choice.index for choice in ask(n=2).choices] == [0, 1])


def context_length() -> None:
    refused(lambda: ask(messages=LONG), BAD, code="context_length_exceeded", param="messages")


def picture_to_a_text_model() -> None:
    refused(lambda: ask(messages=PICTURE), BAD, code="unsupported_content", param="messages")


def chat_to_an_embedding_model() -> None:
    refused(lambda: ask(model=EMBED), BAD, code="unsupported_by_model", param="model")


def speech_from_a_chat_model() -> None:
    refused(
        lambda: client.audio.speech.create(model=CHAT, voice="nova", input="hi"),
        BAD,
        code="unsupported_by_model",
        param="model",
    )


def malformed_tools() -> None:
    refused(lambda: ask(tools=MALFORMED), BAD, code="invalid_value", param="tools")


def empty_messages() -> None:
    refused(lambda: ask(messages=[]), BAD, code="invalid_value", param="messages")


def temperature() -> None:
    refused(lambda: ask(temperature=2.5), BAD, code="invalid_value", param="temperature")


def nulls() -> None:
    check("Paris" in ask(messages=NULLS, extra_body={"tools": None, "n": None}).choices[0].message.content)
    body = {"model": EMBED, "input": "a horse", "encoding_format": None}
    answer: Any = client.post("/embeddings", cast_to=object, body=body)
    check(len(answer["data"][0]["embedding"]) == 576)


def functions() -> None:
    refused(lambda: ask(functions=[TOOLS[0]["function"]]), BAD, code="invalid_value", param="functions")


def completion_fields() -> None:
    def complete(**more: Any) -> Any:
        return client.completions.create(**({"model": CHAT, "prompt": "One two", "max_tokens": 3} | more))

    check(complete(echo=True).choices[0].text.startswith("One two"))
    refused(lambda: complete(suffix="x"), BAD, code="invalid_value", param="suffix")
    refused(lambda: complete(max_tokens=0), BAD, code="invalid_value", param="max_tokens")


run(
    {
        "chat": chat,
        "stream": stream,
        "cancel": cancel,
        "tools": tools,
        "tools of a model without": tools_of_a_model_without,
        "embeddings": embeddings,
        "dimensions": dimensions,
        "several answers": several_answers,
        "context length": context_length,
        "picture to a text model": picture_to_a_text_model,
        "chat to an embedding model": chat_to_an_embedding_model,
        "speech from a chat model": speech_from_a_chat_model,
        "malformed tools": malformed_tools,
        "empty messages": empty_messages,
        "temperature": temperature,
        "nulls": nulls,
        "functions": functions,
        "fields of completions": completion_fields,
    }
)
