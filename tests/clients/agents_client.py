"""The `openai-agents` package, over chats and over responses. It knows no embeddings and no speech."""

import asyncio
from typing import Any

import agents
import openai
from cases import CHAT, ECHO, EMBED, KEY, LONG, PICTURE, QUESTION, SLOW, URL, check, refused, run, until_under_way

agents.set_tracing_disabled(True)
client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=100)
loop = asyncio.new_event_loop()
BAD = openai.BadRequestError
heard: list[str] = []


@agents.function_tool
def listen(text: str) -> str:
    """Listen to it."""
    heard.append(text)
    return "heard"


def agent(model: str = CHAT, *, responses: bool = False, **more: Any) -> Any:
    kind = agents.OpenAIResponsesModel if responses else agents.OpenAIChatCompletionsModel
    settings = agents.ModelSettings(**({"temperature": 0, "max_tokens": 30} | more.pop("settings", {})))
    return agents.Agent(name="a", model=kind(model=model, openai_client=client), model_settings=settings, **more)


def ask(one: Any, asked: Any = QUESTION) -> Any:
    return loop.run_until_complete(agents.Runner.run(one, asked, max_turns=3)).final_output


def chat() -> None:
    check("Paris" in ask(agent()))


def chat_over_responses() -> None:
    check("Paris" in ask(agent(responses=True)))


async def _streamed(one: Any) -> str:
    result = agents.Runner.run_streamed(one, QUESTION)
    async for _ in result.stream_events():
        pass
    return str(result.final_output)


def stream() -> None:
    check("Paris" in loop.run_until_complete(_streamed(agent())))
    check("Paris" in loop.run_until_complete(_streamed(agent(responses=True))))


async def _cancelled() -> None:
    result = agents.Runner.run_streamed(agent(SLOW, settings={"max_tokens": 400}), QUESTION)
    async for _ in result.stream_events():
        await asyncio.to_thread(until_under_way, SLOW, 1)
        break
    result.cancel()
    async for _ in result.stream_events():
        pass


def cancel() -> None:
    loop.run_until_complete(_cancelled())
    loop.run_until_complete(asyncio.to_thread(until_under_way, SLOW, 0))


def tools() -> None:
    """The tool is called, its answer goes back, and the model answers in words."""
    check(ask(agent(ECHO, tools=[listen])) == QUESTION)
    check(heard == [QUESTION], heard)


def tools_of_a_model_without() -> None:
    refused(lambda: ask(agent(tools=[listen])), BAD, code="unsupported_by_model", param="tools")
    refused(lambda: ask(agent(tools=[listen], responses=True)), BAD, code="unsupported_by_model", param="tools")


def context_length() -> None:
    refused(lambda: ask(agent(), LONG), BAD, code="context_length_exceeded", param="messages")
    refused(lambda: ask(agent(responses=True), LONG), BAD, code="context_length_exceeded", param="input")


def picture_to_a_text_model() -> None:
    url = PICTURE[0]["content"][1]["image_url"]["url"]
    asked = [{"role": "user", "content": [{"type": "input_image", "image_url": url, "detail": "auto"}]}]
    refused(lambda: ask(agent(), asked), BAD, code="unsupported_content", param="messages")


def chat_to_an_embedding_model() -> None:
    refused(lambda: ask(agent(EMBED)), BAD, code="unsupported_by_model", param="model")


def malformed_tools() -> None:
    """The package makes the tools itself: one with a schema that is none."""
    tool = agents.FunctionTool(
        name="f",
        description="d",
        params_json_schema="x",
        on_invoke_tool=None,
        strict_json_schema=False,  # type: ignore
    )
    refused(lambda: ask(agent(ECHO, tools=[tool])), BAD, code="invalid", param="tools")


def empty_messages() -> None:
    refused(lambda: ask(agent(), []), BAD, code="invalid_value", param="messages")


def temperature() -> None:
    refused(lambda: ask(agent(settings={"temperature": 2.5})), BAD, code="invalid_value", param="temperature")


run(
    {
        "chat": chat,
        "chat over responses": chat_over_responses,
        "stream": stream,
        "cancel": cancel,
        "tools": tools,
        "tools of a model without": tools_of_a_model_without,
        "context length": context_length,
        "picture to a text model": picture_to_a_text_model,
        "chat to an embedding model": chat_to_an_embedding_model,
        "malformed tools": malformed_tools,
        "empty messages": empty_messages,
        "temperature": temperature,
    }
)
