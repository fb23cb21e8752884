"""OpenAI's requests as messages for backends."""

import json
from typing import Any

import pytest

from corral.adapter.dialects.openai import chat_options, completion_options, edit_options, embedding_options, repeated
from corral.adapter.dialects.requests import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    EditRequest,
    EmbeddingRequest,
    MessagePart,
    UnsupportedContent,
    check_chat,
    check_completion,
    check_edit,
    parse,
)
from corral.base.errors import InvalidInput
from corral.frontend.models.decide.model import read_model
from corral.frontend.serving.loading.model_loader import adapter_model
from corral.rpc.messages import PredictOptions
from corral.templates import prompt_line
from corral.wire.adapter import AdapterModel, PromptTemplates, RequestDefaults
from tests.kit.gbnf import read_grammar

MODEL = AdapterModel(name="m", identity="m.bin", use_tokenizer_template=True)
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
NAMED = {"type": "function", "function": {"name": "f"}}


def chat(body: dict[str, Any], model: AdapterModel = MODEL) -> PredictOptions:
    request = parse(json.dumps(HELLO | body).encode(), ChatRequest)
    check_chat(request)
    return chat_options(request, model)


def test_a_request_that_says_nothing_gets_localais_defaults() -> None:
    """Those that a LocalAI frontend was seen to send, apart from what it draws or adds for one machine."""
    options = chat({}, AdapterModel(name="m", identity="m.bin"))
    assert options.Prompt == "hi"
    assert (options.TopK, options.TopP, options.Temperature) == (40, pytest.approx(0.95), pytest.approx(0.9))
    assert (options.TailFreeSamplingZ, options.TypicalP, options.MirostatTAU) == (1.0, 1.0, 5.0)
    assert (options.MMap, options.PromptCacheAll, options.ModelIdentity) == (True, True, "m.bin")
    assert not options.UseTokenizerTemplate
    assert not options.Messages


def test_what_the_request_says_wins_over_the_models_defaults() -> None:
    model = AdapterModel(
        name="m",
        use_tokenizer_template=True,
        system_prompt="Be brief.",
        defaults=RequestDefaults(temperature=0.2, max_tokens=64, stop=("</s>",)),
    )
    quiet = chat({}, model)
    assert (quiet.Temperature, quiet.Tokens, list(quiet.StopPrompts)) == (pytest.approx(0.2), 64, ["</s>"])
    assert [message.role for message in quiet.Messages] == ["system", "user"]
    loud = chat({"temperature": 0, "max_completion_tokens": 5, "max_tokens": 9, "stop": "END", "seed": 3}, model)
    assert (loud.Temperature, loud.Tokens, list(loud.StopPrompts), loud.Seed) == (0.0, 5, ["</s>", "END"], 3)


def test_localais_own_fields_reach_the_backend() -> None:
    usual = AdapterModel(
        name="m",
        use_tokenizer_template=True,
        takes_grammars=True,
        defaults=RequestDefaults(n_keep=4, repeat_last_n=64, tail_free_z=0.5, n_draft=8, prompt_cache_all=False),
    )
    quiet = chat({}, usual)
    assert (quiet.NKeep, quiet.Repeat, quiet.TailFreeSamplingZ) == (4, 64, 0.5)
    assert (quiet.NDraft, quiet.PromptCacheAll) == (8, False)
    loud = chat({"n_keep": -1, "repeat_last_n": 0, "tfz": 0.25, "ignore_eos": True, "grammar": "root ::= 1"}, usual)
    assert (loud.NKeep, loud.Repeat, loud.TailFreeSamplingZ) == (-1, 0, 0.25)
    assert (loud.IgnoreEOS, loud.Grammar) == (True, "root ::= 1")


@pytest.mark.parametrize("field", ["seed", "top_k", "n_keep", "repeat_last_n"])
def test_a_number_that_does_not_fit_into_the_message_is_refused_by_its_name(field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        chat({field: 2**31})
    assert refused.value.field == field


def test_sounds_and_films_may_come_as_data_urls() -> None:
    parts = [
        {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,QQ=="}},
        {"type": "video_url", "video_url": "data:video/mp4;base64,Qg=="},
    ]
    options = chat({"messages": [{"role": "user", "content": parts}]})
    assert (list(options.Audios), list(options.Videos)) == (["QQ=="], ["Qg=="])
    rendered = chat({"messages": [{"role": "user", "content": parts}]}, AdapterModel(name="m"))
    assert rendered.Prompt == "<__media__>[vid-0]"


@pytest.mark.parametrize("kind", ["image_url", "audio_url", "video_url"])
def test_media_that_would_have_to_be_fetched_are_refused(kind: str) -> None:
    part = {"type": kind, kind: {"url": "http://example.com/x"}}
    with pytest.raises(InvalidInput) as refused:
        chat({"messages": [{"role": "user", "content": [part]}]})
    assert refused.value.field == f"messages.content.{kind}"


def test_the_models_system_prompt_stands_where_its_template_says() -> None:
    silent = AdapterModel(name="m", system_prompt="Be brief.", templates=PromptTemplates(chat="{{.Input}}"))
    assert chat({}, silent).Prompt == "hi"
    templates = PromptTemplates(chat="[{{.SystemPrompt}}]{{.Input}}")
    assert chat({}, AdapterModel(name="m", system_prompt="Be brief.", templates=templates)).Prompt == "[Be brief.]hi"


def test_messages_keep_their_parts_where_the_contract_wants_them() -> None:
    options = chat(
        {
            "messages": [
                {"role": "system", "content": "s"},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "look"},
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
                    ],
                },
                {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
                {"role": "tool", "tool_call_id": "c", "content": "42"},
            ],
            "tools": TOOLS,
            "tool_choice": "auto",
            "chat_template_kwargs": {"enable_thinking": False},
        }
    )
    assert [message.content for message in options.Messages] == ["s", "look", "", "42"]
    assert list(options.Images) == ["QUJD"]
    assert json.loads(options.Messages[2].tool_calls)[0]["id"] == "c"
    assert options.Messages[3].tool_call_id == "c"
    assert (json.loads(options.Tools), json.loads(options.ToolChoice)) == (TOOLS, "auto")
    assert json.loads(options.Metadata["chat_template_kwargs"]) == {"enable_thinking": False}


def test_how_a_model_thinks_is_said_by_its_configuration_and_then_by_the_request() -> None:
    model = AdapterModel(name="m", thinks=False, reasoning_effort="low", template_arguments={"a": 1, "b": 2})
    quiet = chat({}, model).Metadata
    assert (quiet["enable_thinking"], quiet["reasoning_effort"]) == ("false", "low")
    assert json.loads(quiet["chat_template_kwargs"]) == {"a": 1, "b": 2}
    asked = {"metadata": {"enable_thinking": "true"}, "reasoning_effort": "high", "chat_template_kwargs": {"b": 3}}
    loud = chat(asked, model).Metadata
    assert (loud["enable_thinking"], loud["reasoning_effort"]) == ("true", "high")
    assert json.loads(loud["chat_template_kwargs"]) == {"a": 1, "b": 3}
    assert dict(chat({}).Metadata) == {}


def test_in_a_prompt_that_we_render_media_have_their_places() -> None:
    parts = [
        {"type": "input_audio", "input_audio": {"data": "QQ=="}},
        {"type": "text", "text": " and "},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
    ]
    options = chat({"messages": [{"role": "user", "content": parts}]}, AdapterModel(name="m"))
    assert options.Prompt == "<__media__><__media__> and "
    assert (list(options.Images), list(options.Audios)) == (["QUJD"], ["QQ=="])
    templates = PromptTemplates(multimodal="{{range .Images}}[img-{{.ID}}]{{end}}{{.Text}}")
    options = chat({"messages": [{"role": "user", "content": parts}]}, AdapterModel(name="m", templates=templates))
    assert options.Prompt == "[img-0] and "


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": 1}]}, "messages[0].role"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"temperature": 2.1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"tools": "f"}, "tools"),
        ({"tools": [1]}, "tools[0]"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "grammar": 'root ::= "a"'}, "grammar"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": []}, "temperature"),
        ({"seed": 2**40}, "seed"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"stop": [1]}, "stop[0]"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "grammar": 'root ::= "a"'}, "response_format"),
        ({"response_format": {"type": "json_object"}, "tools": TOOLS}, "response_format"),
        ({"verbosity": "low"}, "verbosity"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, None),
    ],
)
def test_a_bad_field_is_named(body: dict[str, Any], field: str | None) -> None:
    with pytest.raises(InvalidInput) as refused:
        chat(body)
    assert refused.value.field == (field or "messages.content.image_url")


def test_the_format_of_a_completion_is_refused() -> None:
    check_completion(parse(b'{"prompt": "x", "response_format": {"type": "text"}}', CompletionRequest))
    request = parse(b'{"prompt": "x", "response_format": {"type": "json_object"}}', CompletionRequest)
    with pytest.raises(InvalidInput, match=r"^response_format: is offered for chats"):
        check_completion(request)


@pytest.mark.parametrize("text", ['""', "[]", '[""]', '["a", ""]', "[[]]", "[[1], []]"])
def test_an_empty_text_has_no_vector(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^input: must not be empty"):
        parse(b'{"input": %b}' % text.encode(), EmbeddingRequest).texts()


def test_null_is_what_was_not_given() -> None:
    """Clients that have a field for everything send it."""
    message = dict.fromkeys(ChatMessage.__struct_fields__) | HELLO["messages"][0]
    parts = [dict.fromkeys(MessagePart.__struct_fields__) | {"type": "text", "text": "hi"}]
    body = dict.fromkeys(ChatRequest.__struct_fields__) | {"messages": [message]}
    assert chat(body) == chat({})
    assert chat({"messages": [{"role": "user", "content": parts}]}) == chat({})
    embedding = parse(b'{"input": "a", "model": null, "encoding_format": null, "dimensions": null}', EmbeddingRequest)
    assert embedding.texts() == ["a"]
    completion = parse(
        json.dumps(dict.fromkeys(CompletionRequest.__struct_fields__) | {"prompt": "a"}).encode(), CompletionRequest
    )
    check_completion(completion)
    assert completion_options(completion, MODEL)[0].Tokens == 0


@pytest.mark.parametrize("type", ["image_url", "audio_url", "video_url", "input_audio"])
@pytest.mark.parametrize("renders_itself", [True, False])
def test_media_are_refused_where_the_model_certainly_takes_none(type: str, renders_itself: bool) -> None:
    model = AdapterModel(name="m", use_tokenizer_template=renders_itself, takes_no_media=True)
    asked = {"messages": [*HELLO["messages"], {"role": "user", "content": [{"type": type}]}]}
    with pytest.raises(UnsupportedContent, match=r"^(image|audio|video) input is not supported by this model$"):
        chat(asked, model)
    text = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}
    assert chat(text, model) == chat({}, model)


def test_a_grammar_is_refused_where_the_backend_takes_none() -> None:
    asked = {"grammar": 'root ::= "a"'}
    with pytest.raises(InvalidInput, match=r"^grammar: is not offered by this backend$"):
        chat(asked)
    completion = parse(json.dumps({"prompt": "x", **asked}).encode(), CompletionRequest)
    with pytest.raises(InvalidInput, match=r"^grammar: is not offered by this backend$"):
        completion_options(completion, MODEL)
    assert not chat({"grammar": ""}).Grammar


def test_a_grammar_and_a_named_tool_reach_the_backend() -> None:
    model = AdapterModel(name="m", use_tokenizer_template=True, takes_grammars=True)
    assert chat({"grammar": 'root ::= "a"'}, model).Grammar == 'root ::= "a"'
    assert json.loads(chat({"tools": TOOLS, "tool_choice": NAMED}).ToolChoice) == NAMED


def form(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}}


@pytest.mark.parametrize("renders_itself", [True, False])
def test_the_form_of_an_answer_is_a_grammar_for_backends_that_take_one(renders_itself: bool) -> None:
    model = AdapterModel(name="m", use_tokenizer_template=renders_itself, takes_grammars=True)
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}
    assert read_grammar(chat(form(schema), model).Grammar).matches('{"a": null}')
    anything = read_grammar(chat({"response_format": {"type": "json_object"}}, model).Grammar)
    assert (anything.matches('{"b": [1]}'), anything.matches("[1]")) == (True, False)
    assert chat({"response_format": {"type": "text"}}, model) == chat({}, model)


def test_what_a_form_cannot_say_is_named_by_its_place() -> None:
    model = AdapterModel(name="m", use_tokenizer_template=True, takes_grammars=True)
    with pytest.raises(InvalidInput) as refused:
        chat(form({"properties": {"a": {"multipleOf": 3}}}), model)
    assert refused.value.field == "response_format.json_schema.schema.properties.a.multipleOf"


def test_tools_are_refused_where_no_template_has_a_place_for_them() -> None:
    with pytest.raises(InvalidInput, match="tools: the prompt templates of this model have no place for them"):
        chat({"tools": TOOLS}, AdapterModel(name="m", templates=PromptTemplates(chat="{{.Input}}")))
    assert chat({"tools": TOOLS, "tool_choice": "none"}, AdapterModel(name="m")).Prompt == "hi"


@pytest.mark.parametrize(
    ("templates", "prompt"),
    [
        (PromptTemplates(function="{{range .Functions}}({{.Name}}){{end}}{{.Input}}", chat="c"), "(f)(answer)hi"),
        (PromptTemplates(chat="{{range .Functions}}<{{.Name}}>{{end}}", no_action_disabled=True), "<f>"),
        (PromptTemplates(function="{{range .Functions}}{{.Name}}{{end}}", grammar_disabled=True), "f"),
        (PromptTemplates(function="{{range .Functions}}{{.Name}} {{end}}", no_action_name="talk"), "f talk "),
    ],
)
def test_tools_are_rendered_where_a_template_shows_them(templates: PromptTemplates, prompt: str) -> None:
    assert chat({"tools": TOOLS}, AdapterModel(name="m", templates=templates)).Prompt == prompt


def test_messages_without_a_template_of_theirs_get_the_names_of_roles() -> None:
    templates = PromptTemplates(roles={"user": "HUMAN: ", "assistant": "AI: "}, chat="{{.Input}}")
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
    ]
    options = chat({"messages": messages}, AdapterModel(name="m", templates=templates))
    assert options.Prompt == 'HUMAN: a\nAI:  {"arguments":"{}","name":"f"}'


def test_an_older_call_reaches_a_backend_that_renders_itself() -> None:
    called = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    options = chat({"messages": [called]})
    function = {"name": "f", "arguments": "{}"}
    assert json.loads(options.Messages[0].tool_calls) == [{"type": "function", "function": function}]


@pytest.mark.parametrize(
    "body",
    [
        {"tools": TOOLS, "tool_choice": "required", "reasoning_effort": "high", "metadata": {"a": "b"}},
        {"tools": TOOLS, "tool_choice": NAMED},
        {"messages": [{"role": "system", "content": "S"}, {"role": "user", "name": "n", "content": "hi"}]},
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}]},
    ],
)
def test_the_prompt_is_what_the_command_shows(body: dict[str, Any]) -> None:
    config: dict[str, Any] = {
        "system_prompt": "Be kind.",
        "reasoning_effort": "low",
        "roles": {"user": "U:"},
        "template": {
            "chat_message": "<{{.Role}}{{.RoleName}} {{.FunctionName}}>{{.Content}}{{toJson .FunctionCall}}",
            "chat": "{{.SystemPrompt}}|{{.Input}}|{{.ReasoningEffort}}{{.Metadata.a}}",
            "function": "{{.SystemPrompt}}|{{toJson .Functions}}|{{.Input}}|{{.ReasoningEffort}}",
        },
    }
    spec = read_model({"name": "m", "backend": "b", "parameters": {"model": "w"}, **config}, source="x")
    shown = prompt_line(config, json.dumps(HELLO | body))
    assert chat(body, adapter_model(spec, file="", threads=1)).Prompt == shown["prompt"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"echo": True, "logprobs": 1}, "logprobs"),
        ({"logprobs": 2**31}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt": ""}, "prompt"),
    ],
)
def test_a_completion_that_cannot_be_made_as_asked_is_refused(body: dict[str, Any], field: str) -> None:
    request = parse(json.dumps({"prompt": "a"} | body).encode(), CompletionRequest)
    with pytest.raises(InvalidInput) as refused:
        check_completion(request)
    assert refused.value.field == field


def test_several_answers_have_seeds_of_their_own() -> None:
    assert [one.Seed for one in repeated(chat({"seed": 5}), 3)] == [5, 6, 7]
    assert [one.Seed for one in repeated(chat({}), 3)] == [-1, -1, -1]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"nul"])
def test_what_is_not_json_is_said_so(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="not JSON"):
        parse(body, ChatRequest)


def test_a_completion_has_one_call_for_each_prompt() -> None:
    request = parse(b'{"prompt": ["a", "b"], "max_tokens": -1}', CompletionRequest)
    check_completion(request)
    model = AdapterModel(name="m", templates=PromptTemplates(completion="Q: {{.Input}}"))
    made = completion_options(request, model)
    assert [(one.Prompt, one.Tokens) for one in made] == [("Q: a", 0), ("Q: b", 0)]


def edit(body: dict[str, Any], model: AdapterModel = MODEL) -> list[PredictOptions]:
    request = parse(json.dumps({"instruction": "shorten"} | body).encode(), EditRequest)
    check_edit(request)
    return edit_options(request, model)


def test_an_edit_has_one_call_for_each_text_with_the_instruction() -> None:
    model = AdapterModel(name="m", templates=PromptTemplates(edit="{{.Instruction}}: {{.Input}}"))
    made = edit({"input": ["a", "b"], "max_tokens": 7}, model)
    assert [(one.Prompt, one.Tokens) for one in made] == [("shorten: a", 7), ("shorten: b", 7)]


def test_without_a_template_the_instruction_stands_before_the_text() -> None:
    assert [one.Prompt for one in edit({"input": "a"})] == ["shorten\n\na"]


@pytest.mark.parametrize(
    ("body", "field"),
    [({"instruction": ""}, "instruction"), ({"input": []}, "input"), ({"stream": True}, "stream"), ({"n": 0}, "n")],
)
def test_an_edit_that_cannot_be_made_as_asked_is_refused(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        edit({"input": "a"} | body)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ('{"input": "a"}', ["a"]),
        ('{"input": ["a", "b"]}', ["a", "b"]),
        ('{"input": [1, 2]}', [[1, 2]]),
        ('{"input": [[1], [2, 3]]}', [[1], [2, 3]]),
    ],
)
def test_texts_and_tokens_can_be_embedded(body: str, texts: list[Any]) -> None:
    request = parse(body.encode(), EmbeddingRequest)
    assert request.texts() == texts
    made = [embedding_options(text, MODEL) for text in request.texts()]
    assert [one.Embeddings or list(one.EmbeddingTokens) for one in made] == texts


_NO_TOKEN = 2**31


@pytest.mark.parametrize(
    "body",
    [
        '{"input": []}',
        '{"input": ["a", 1]}',
        '{"input": {}}',
        "{}",
        f'{{"input": [{_NO_TOKEN}]}}',
        f'{{"input": [[1], [{_NO_TOKEN}]]}}',
        '{"input": [-1]}',
    ],
)
def test_what_cannot_be_embedded_is_refused(body: str) -> None:
    with pytest.raises(InvalidInput):
        parse(body.encode(), EmbeddingRequest).texts()
