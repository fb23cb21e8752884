"""The `langchain-openai` package. It knows no speech."""

from typing import Any

import cases
import openai
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

PLACE: dict[str, Any] = {"base_url": f"{cases.URL}/v1", "api_key": cases.KEY, "max_retries": 0}
BAD = openai.BadRequestError


def model(name: str = cases.CHAT, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(**({"model": name, "temperature": 0, "max_tokens": 30, "timeout": 100} | more), **PLACE)


@cases.case
def chat() -> None:
    cases.check("Paris" in str(model().invoke(cases.ASKED).content))


@cases.case
def stream() -> None:
    cases.check("Paris" in "".join(str(part.content) for part in model().stream(cases.ASKED)))


@cases.case
def cancel() -> None:
    parts = model(cases.SLOW, max_tokens=400).stream(cases.ASKED)
    next(parts)
    cases.until_under_way(cases.SLOW, 1)
    parts.close()  # type: ignore[attr-defined]
    cases.until_under_way(cases.SLOW, 0)


@cases.case
def tools() -> None:
    (call,) = model(cases.ECHO).bind_tools(cases.TOOLS, tool_choice="listen").invoke(cases.ASKED).tool_calls
    cases.check(call["name"] == "listen", call)


@cases.case
def tools_of_a_model_without() -> None:
    cases.refused(
        lambda: model().bind_tools(cases.TOOLS).invoke(cases.ASKED), BAD, code="unsupported_by_model", param="tools"
    )


@cases.case
def embeddings() -> None:
    """It may send tokens instead of texts, which no other model knows: told not to."""
    one = OpenAIEmbeddings(model=cases.EMBED, check_embedding_ctx_length=False, **PLACE)
    cases.check([len(vector) for vector in one.embed_documents(["a horse", "a stable"])] == [576, 576])
    cut = OpenAIEmbeddings(model=cases.EMBED, check_embedding_ctx_length=False, dimensions=8, **PLACE)
    cases.check(len(cut.embed_query("a horse")) == 8)


@cases.case
def context_length() -> None:
    cases.refused(lambda: model().invoke(cases.LONG), BAD, code="context_length_exceeded", param="messages")


@cases.case
def picture_to_a_text_model() -> None:
    cases.refused(lambda: model().invoke(cases.PICTURE), BAD, code="unsupported_content", param="messages")


@cases.case
def chat_to_an_embedding_model() -> None:
    cases.refused(lambda: model(cases.EMBED).invoke(cases.ASKED), BAD, code="unsupported_by_model", param="model")


@cases.case
def malformed_tools() -> None:
    cases.refused(lambda: model().invoke(cases.ASKED, tools=cases.MALFORMED), BAD, code="invalid_value", param="tools")


@cases.case
def empty_messages() -> None:
    cases.refused(lambda: model().invoke([]), BAD, code="invalid_value", param="messages")


@cases.case
def temperature() -> None:
    cases.refused(lambda: model(temperature=2.5).invoke(cases.ASKED), BAD, code="invalid_value", param="temperature")


cases.run()
