"""The `openai-agents` package, over chats and over responses. It knows no embeddings and no speech."""

import asyncio
from typing import Any

import agents
import cases
import openai

agents.set_tracing_disabled(True)
client = openai.AsyncOpenAI(base_url=f"{cases.URL}/v1", api_key=cases.KEY, max_retries=0, timeout=100)
loop = asyncio.new_event_loop()
BAD = openai.BadRequestError
heard: list[str] = []


@agents.function_tool
def listen(text: str) -> str:
    """Listen to it."""
    heard.append(text)
    return "heard"


def agent(model: str = cases.CHAT, *, responses: bool = False, **more: Any) -> Any:
    kind = agents.OpenAIResponsesModel if responses else agents.OpenAIChatCompletionsModel
    settings = agents.ModelSettings(**({"temperature": 0, "max_tokens": 30} | more.pop("settings", {})))
    return agents.Agent(name="a", model=kind(model=model, openai_client=client), model_settings=settings, **more)


def ask(one: Any, asked: Any = cases.QUESTION) -> Any:
    return loop.run_until_complete(agents.Runner.run(one, asked, max_turns=3)).final_output


@cases.case
def chat() -> None:
    cases.check("Paris" in ask(agent()))


@cases.case
def chat_over_responses() -> None:
    cases.check("Paris" in ask(agent(responses=True)))


async def _streamed(one: Any) -> str:
    result = agents.Runner.run_streamed(one, cases.QUESTION)
    async for _ in result.stream_events():
        pass
    return str(result.final_output)


@cases.case
def stream() -> None:
    cases.check("Paris" in loop.run_until_complete(_streamed(agent())))
    cases.check("Paris" in loop.run_until_complete(_streamed(agent(responses=True))))


async def _cancelled() -> None:
    result = agents.Runner.run_streamed(agent(cases.SLOW, settings={"max_tokens": 400}), cases.QUESTION)
    async for _ in result.stream_events():
        await asyncio.to_thread(cases.until_under_way, cases.SLOW, 1)
        break
    result.cancel()
    async for _ in result.stream_events():
        pass


@cases.case
def cancel() -> None:
    loop.run_until_complete(_cancelled())
    loop.run_until_complete(asyncio.to_thread(cases.until_under_way, cases.SLOW, 0))


@cases.case
def tools() -> None:
    """The tool is called, its answer goes back, and the model answers in words."""
    cases.check(ask(agent(cases.ECHO, tools=[listen])) == cases.QUESTION)
    cases.check(heard == [cases.QUESTION], heard)


@cases.case
def responses_of_a_backend_that_only_speaks_grpc() -> None:
    cases.check(ask(agent(cases.ECHO, responses=True, instructions="be kind")) == cases.QUESTION)
    cases.check(loop.run_until_complete(_streamed(agent(cases.ECHO, responses=True))) == cases.QUESTION)


@cases.case
def tools_in_responses_of_a_backend_that_only_speaks_grpc() -> None:
    """The answer's items go back as the package keeps them, with the result of the tool, whole and streamed."""
    for settings in ({}, {"parallel_tool_calls": False, "tool_choice": "listen"}):
        heard.clear()
        calling = agent(cases.ECHO, responses=True, tools=[listen], settings=settings)
        cases.check(ask(calling) == cases.QUESTION)
        cases.check(heard == [cases.QUESTION], heard)
        cases.check(loop.run_until_complete(_streamed(calling)) == cases.QUESTION)
        cases.check(heard == [cases.QUESTION] * 2, heard)


@cases.case
def conversation_in_responses_of_a_backend_that_only_speaks_grpc() -> None:
    """The second turn sends what the first one answered."""
    one = agent(cases.ECHO, responses=True)
    first = loop.run_until_complete(agents.Runner.run(one, "a horse"))
    again = [*first.to_input_list(), {"role": "user", "content": "a stable"}]
    cases.check(ask(one, again) == "a stable")


@cases.case
def faults_in_responses_for_a_backend_that_only_speaks_grpc() -> None:
    def run(**more: Any) -> Any:
        return loop.run_until_complete(
            agents.Runner.run(agent(cases.ECHO, responses=True), cases.QUESTION, max_turns=3, **more)
        )

    cases.refused(lambda: run(previous_response_id="resp_1"), BAD, code="invalid_input", param="previous_response_id")
    cases.refused(lambda: run(conversation_id="conv_1"), BAD, code="invalid_input", param="conversation")
    searching = agent(cases.ECHO, responses=True, tools=[agents.WebSearchTool()])
    cases.refused(lambda: ask(searching), BAD, code="invalid_input", param="tools[0].type")
    cutting = agent(cases.ECHO, responses=True, settings={"truncation": "auto"})
    cases.refused(lambda: ask(cutting), BAD, code="invalid_input", param="truncation")


@cases.case
def tools_of_a_model_without() -> None:
    cases.refused(lambda: ask(agent(tools=[listen])), BAD, code="unsupported_by_model", param="tools")
    cases.refused(lambda: ask(agent(tools=[listen], responses=True)), BAD, code="unsupported_by_model", param="tools")


@cases.case
def context_length() -> None:
    cases.refused(lambda: ask(agent(), cases.LONG), BAD, code="context_length_exceeded", param="messages")
    cases.refused(lambda: ask(agent(responses=True), cases.LONG), BAD, code="context_length_exceeded", param="input")


@cases.case
def picture_to_a_text_model() -> None:
    url = cases.PICTURE[0]["content"][1]["image_url"]["url"]
    asked = [{"role": "user", "content": [{"type": "input_image", "image_url": url, "detail": "auto"}]}]
    cases.refused(lambda: ask(agent(), asked), BAD, code="unsupported_content", param="messages")


@cases.case
def chat_to_an_embedding_model() -> None:
    cases.refused(lambda: ask(agent(cases.EMBED)), BAD, code="unsupported_by_model", param="model")


@cases.case
def malformed_tools() -> None:
    """The package makes the tools itself: one with a schema that is none."""
    tool = agents.FunctionTool(
        name="f",
        description="d",
        params_json_schema="x",
        on_invoke_tool=None,
        strict_json_schema=False,  # type: ignore
    )
    cases.refused(lambda: ask(agent(cases.ECHO, tools=[tool])), BAD, code="invalid", param="tools")


@cases.case
def empty_messages() -> None:
    cases.refused(lambda: ask(agent(), []), BAD, code="invalid_value", param="messages")


@cases.case
def temperature() -> None:
    cases.refused(lambda: ask(agent(settings={"temperature": 2.5})), BAD, code="invalid_value", param="temperature")


cases.run()
