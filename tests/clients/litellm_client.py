"""The `litellm` package, which reads errors of providers and makes its own of them."""

from typing import Any

import cases
import litellm
import openai

litellm.num_retries = 0
litellm.suppress_debug_info = True
PLACE: dict[str, Any] = {"api_base": f"{cases.URL}/v1", "api_key": cases.KEY, "timeout": 100, "max_retries": 0}
BAD = litellm.BadRequestError


def ask(model: str = cases.CHAT, **more: Any) -> Any:
    asked = {"model": f"openai/{model}", "messages": cases.ASKED, "temperature": 0, "max_tokens": 30}
    return litellm.completion(**(asked | more), **PLACE)


@cases.case
def chat() -> None:
    cases.check("Paris" in ask().choices[0].message.content)


@cases.case
def stream() -> None:
    cases.check("Paris" in "".join(event.choices[0].delta.content or "" for event in ask(stream=True)))


@cases.case
def cancel() -> None:
    events = ask(cases.SLOW, stream=True, max_tokens=400)
    next(iter(events))
    cases.until_under_way(cases.SLOW, 1)
    events.completion_stream.response.close()
    cases.until_under_way(cases.SLOW, 0)


@cases.case
def tools() -> None:
    call = ask(cases.ECHO, tools=cases.TOOLS, tool_choice=cases.NAMED).choices[0].message.tool_calls[0]
    cases.check(call.function.name == "listen", call)


@cases.case
def tools_of_a_model_without() -> None:
    cases.refused(lambda: ask(tools=cases.TOOLS), BAD, code="tools", param="no place for tools")


@cases.case
def embeddings() -> None:
    answer = litellm.embedding(model=f"openai/{cases.EMBED}", input=["a horse"], encoding_format="float", **PLACE)
    cases.check(len(answer.data[0]["embedding"]) == 576)


@cases.case
def context_length() -> None:
    """It is known as what it is, so that routers can try a model with a longer context."""
    cases.refused(
        lambda: ask(messages=cases.LONG), litellm.ContextWindowExceededError, code="context", param="context size"
    )


@cases.case
def picture_to_a_text_model() -> None:
    cases.refused(lambda: ask(messages=cases.PICTURE), BAD, code="image input", param="not supported")


@cases.case
def chat_to_an_embedding_model() -> None:
    cases.refused(lambda: ask(cases.EMBED), BAD, code="embeddings", param="not for chat")


@cases.case
def speech_from_a_chat_model() -> None:
    """Here it raises the error of the package below it."""
    cases.refused(
        lambda: litellm.speech(model=f"openai/{cases.CHAT}", voice="nova", input="hi", **PLACE),
        openai.BadRequestError,
        code="speech",
        param=cases.CHAT,
    )


@cases.case
def malformed_tools() -> None:
    cases.refused(lambda: ask(tools=cases.MALFORMED), BAD, code="tools", param="name")


@cases.case
def empty_messages() -> None:
    cases.refused(lambda: ask(messages=[]), BAD, code="messages", param="must not be empty")


@cases.case
def temperature() -> None:
    cases.refused(lambda: ask(temperature=2.5), BAD, code="temperature", param="between 0 and 2")


@cases.case
def nulls() -> None:
    cases.check("Paris" in ask(messages=cases.NULLS, extra_body={"tools": None}).choices[0].message.content)


cases.run()
