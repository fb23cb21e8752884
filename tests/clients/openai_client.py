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
def response_of_a_form() -> None:
    class Answer(pydantic.BaseModel):
        is_known: bool

    parsed = client.responses.parse(model=cases.CHAT, input=cases.QUESTION, text_format=Answer, temperature=0)
    cases.check(isinstance(parsed.output_parsed, Answer), parsed)


@cases.case
def response_that_was_cut() -> None:
    answer = client.responses.create(model=cases.CHAT, input=cases.QUESTION, max_output_tokens=2)
    cases.check(answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens", answer)


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
