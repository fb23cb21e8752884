"""The `openai` package."""

from typing import Any

import cases
import openai
import pydantic

client = openai.OpenAI(base_url=f"{cases.URL}/v1", api_key=cases.KEY, max_retries=0, timeout=100)
BAD = openai.BadRequestError


def ask(**more: Any) -> Any:
    return client.chat.completions.create(
        **({"model": cases.CHAT, "messages": cases.ASKED, "temperature": 0, "max_tokens": 30} | more)
    )


@cases.case
def chat() -> None:
    cases.check("Paris" in ask().choices[0].message.content)


@cases.case
def stream() -> None:
    with ask(stream=True) as events:
        cases.check("Paris" in "".join(event.choices[0].delta.content or "" for event in events if event.choices))


@cases.case
def cancel() -> None:
    with ask(model=cases.SLOW, stream=True, max_tokens=400) as events:
        next(iter(events))
        cases.until_under_way(cases.SLOW, 1)
    cases.until_under_way(cases.SLOW, 0)


@cases.case
def response_stream() -> None:
    with client.responses.stream(model=cases.CHAT, input=cases.QUESTION, temperature=0, max_output_tokens=30) as events:
        cases.check("Paris" in "".join(event.delta for event in events if event.type == "response.output_text.delta"))
        cases.check("Paris" in events.get_final_response().output_text)


@cases.case
def second_turn_of_a_response() -> None:
    told: list[Any] = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}, *cases.ASKED]
    answer = client.responses.create(model=cases.CHAT, input=told, temperature=0, max_output_tokens=30)
    cases.check(answer.output_text, answer)
    answer = client.responses.create(
        model=cases.CHAT, input=[*told, *answer.output, *cases.ASKED], max_output_tokens=16
    )
    cases.check(answer.output_text, answer)


@cases.case
def client_of_azure() -> None:
    azure = openai.AzureOpenAI(
        azure_endpoint=cases.URL, api_key=cases.KEY, api_version="2024-10-21", max_retries=0, timeout=100
    )
    asked: dict[str, Any] = {"model": cases.CHAT, "messages": cases.ASKED, "temperature": 0, "max_tokens": 30}
    cases.check("Paris" in azure.chat.completions.create(**asked).choices[0].message.content)
    with azure.chat.completions.create(**asked, stream=True) as events:
        cases.check("Paris" in "".join(event.choices[0].delta.content or "" for event in events if event.choices))
    cases.check(len(azure.embeddings.create(model=cases.EMBED, input=["a", "b"]).data) == 2)
    cases.check(cases.CHAT in [model.id for model in azure.models.list()])


@cases.case
def usage_of_several_prompts() -> None:
    answer = client.completions.create(model=cases.CHAT, prompt=["One two", "Red"], max_tokens=3, temperature=0, n=2)
    cases.check(len(answer.choices) == 4 and answer.usage.completion_tokens == 12, answer)


@cases.case
def response_of_a_form() -> None:
    class Answer(pydantic.BaseModel):
        is_known: bool

    parsed = client.responses.parse(model=cases.CHAT, input=cases.QUESTION, text_format=Answer, temperature=0)
    cases.check(isinstance(parsed.output_parsed, Answer), parsed)


@cases.case
def response_that_was_cut() -> None:
    answer = client.responses.create(model=cases.CHAT, input=cases.QUESTION, max_output_tokens=2)
    cases.check(answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens", answer)


def respond(**more: Any) -> Any:
    """A response of a backend that only speaks gRPC, validated as the package declares its types."""
    answer = client.responses.create(**({"model": cases.ECHO, "input": cases.QUESTION} | more))
    return openai.types.responses.Response.model_validate(answer.to_dict(), strict=False)


@cases.case
def response_of_a_backend_that_only_speaks_grpc() -> None:
    answer = respond(instructions="be kind", reasoning={"effort": "low", "summary": "auto"}, store=False)
    cases.check((answer.output_text, answer.status) == (cases.QUESTION, "completed"), answer)
    cases.check(answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens > 0, answer)
    cut = respond(max_output_tokens=2)
    cases.check((cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens"), cut)


@cases.case
def response_stream_of_a_backend_that_only_speaks_grpc() -> None:
    with client.responses.create(model=cases.ECHO, input=cases.QUESTION, stream=True) as events:
        told = list(events)
    for event in told:
        type(event).model_validate(event.to_dict(), strict=False)
    cases.check([event.sequence_number for event in told] == list(range(len(told))), told)
    with client.responses.stream(model=cases.ECHO, input=cases.QUESTION) as stream:
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        whole = stream.get_final_response()
    cases.check(said == whole.output_text == cases.QUESTION, whole)


@cases.case
def tools_in_responses_of_a_backend_that_only_speaks_grpc() -> None:
    """The backend `echo` calls a tool that is named; the result goes back to it with all items of the answer."""
    tools = [{"type": "function", **tool["function"], "strict": False} for tool in cases.TOOLS]
    named = {"type": "function", "name": "listen"}
    with client.responses.stream(
        model=cases.ECHO, input=cases.QUESTION, tools=tools, tool_choice=named, parallel_tool_calls=False
    ) as stream:
        arguments = "".join(event.delta for event in stream if event.type == "response.function_call_arguments.delta")
        [call] = stream.get_final_response().output
    cases.check((call.name, call.arguments) == ("listen", arguments), call)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "a horse"}
    answer = respond(input=[*cases.ASKED, call.to_dict(), result], tools=tools)
    cases.check(answer.output_text == cases.QUESTION, answer)
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [named]}
    [call] = respond(tools=tools, tool_choice=allowed).output
    cases.check(call.name == "listen", call)


@cases.case
def faults_in_responses_for_a_backend_that_only_speaks_grpc() -> None:
    class Answer(pydantic.BaseModel):
        is_known: bool

    for more, param in (
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format.type"),
        ({"extra_body": {"max_tokens": 3}}, "max_tokens"),
    ):
        cases.refused(lambda more=more: respond(**more), BAD, code="invalid_input", param=param)
    cases.refused(lambda: respond(temperature=2.5), BAD, code="invalid_value", param="temperature")
    cases.refused(
        lambda: client.responses.parse(model=cases.ECHO, input=cases.QUESTION, text_format=Answer),
        BAD,
        code="invalid_input",
        param="text.format.type",
    )


@cases.case
def failure_in_a_stream_of_a_backend_that_only_speaks_grpc() -> None:
    """The package raises what it is told, in chats and in responses, once it has passed on what was said before."""
    for stream in (
        ask(model=cases.FAILING, stream=True),
        client.responses.create(model=cases.FAILING, input=cases.QUESTION, stream=True),
    ):
        told = []
        try:
            told += stream
        except openai.APIError as error:
            cases.check("error_after" in str(error) and error.code == "backend_failed", error)
        else:
            raise cases.Wrong(str(told))


@cases.case
def probabilities_of_a_completion() -> None:
    answer = client.completions.create(model=cases.CHAT, prompt="The sky is", max_tokens=3, logprobs=2)
    told = answer.choices[0].logprobs
    cases.check([len(told.tokens), len(told.token_logprobs), len(told.top_logprobs)] == [3, 3, 3], told)
    cases.check("".join(told.tokens) == answer.choices[0].text, told)


@cases.case
def tools() -> None:
    call = ask(model=cases.ECHO, tools=cases.TOOLS, tool_choice=cases.NAMED).choices[0].message.tool_calls[0]
    cases.check(call.function.name == "listen", call)


@cases.case
def tools_of_a_model_without() -> None:
    cases.refused(lambda: ask(tools=cases.TOOLS), BAD, code="unsupported_by_model", param="tools")


@cases.case
def embeddings() -> None:
    answer = client.embeddings.create(model=cases.EMBED, input=["a horse", "a stable"])
    cases.check([len(item.embedding) for item in answer.data] == [576, 576])


@cases.case
def dimensions() -> None:
    (item,) = client.embeddings.create(model=cases.EMBED, input="a horse", dimensions=8).data
    cases.check(len(item.embedding) == 8 and abs(sum(x * x for x in item.embedding) - 1) < 1e-3, item)


@cases.case
def several_answers() -> None:
    cases.check([choice.index for choice in ask(n=2).choices] == [0, 1])


@cases.case
def context_length() -> None:
    cases.refused(lambda: ask(messages=cases.LONG), BAD, code="context_length_exceeded", param="messages")


@cases.case
def picture_to_a_text_model() -> None:
    cases.refused(lambda: ask(messages=cases.PICTURE), BAD, code="unsupported_content", param="messages")


@cases.case
def chat_to_an_embedding_model() -> None:
    cases.refused(lambda: ask(model=cases.EMBED), BAD, code="unsupported_by_model", param="model")


@cases.case
def speech_from_a_chat_model() -> None:
    cases.refused(
        lambda: client.audio.speech.create(model=cases.CHAT, voice="nova", input="hi"),
        BAD,
        code="unsupported_by_model",
        param="model",
    )


@cases.case
def malformed_tools() -> None:
    cases.refused(lambda: ask(tools=cases.MALFORMED), BAD, code="invalid_value", param="tools")


@cases.case
def empty_messages() -> None:
    cases.refused(lambda: ask(messages=[]), BAD, code="invalid_value", param="messages")


@cases.case
def temperature() -> None:
    cases.refused(lambda: ask(temperature=2.5), BAD, code="invalid_value", param="temperature")


@cases.case
def nulls() -> None:
    cases.check("Paris" in ask(messages=cases.NULLS, extra_body={"tools": None, "n": None}).choices[0].message.content)
    body = {"model": cases.EMBED, "input": "a horse", "encoding_format": None}
    answer: Any = client.post("/embeddings", cast_to=object, body=body)
    cases.check(len(answer["data"][0]["embedding"]) == 576)


@cases.case
def functions() -> None:
    cases.refused(lambda: ask(functions=[cases.TOOLS[0]["function"]]), BAD, code="invalid_value", param="functions")


@cases.case
def fields_of_completions() -> None:
    def complete(**more: Any) -> Any:
        return client.completions.create(**({"model": cases.CHAT, "prompt": "One two", "max_tokens": 3} | more))

    cases.check(complete(echo=True).choices[0].text.startswith("One two"))
    cases.refused(lambda: complete(suffix="x"), BAD, code="invalid_value", param="suffix")
    cases.refused(lambda: complete(max_tokens=0), BAD, code="invalid_value", param="max_tokens")


cases.run()
