"""Requests become prompts as LocalAI makes them, and what fails is said instead of left out."""

import json
from typing import Any

import pytest

from corral.base.errors import InvalidInput
from corral.templates import (
    PromptSettings,
    TemplateFailed,
    has_place_for_tools,
    prompt_line,
    refusals,
    render_chat,
    template_problem,
)
from corral.templates.prompts import offered_tools

MESSAGE = "<{{.RoleName}}>{{.Content}}{{if .FunctionCall}}{{toJson .FunctionCall}}{{end}}</>"
CHAT = {"template": {"chat_message": MESSAGE, "chat": "{{.Input}}\n<assistant>"}}
TOOLS = {
    "template": {
        **CHAT["template"],
        "function": "{{range .Functions}}{{.Name}};{{end}}{{.Input}}",
    }
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
TIME = {"type": "function", "function": {"name": "time", "strict": True}}


def prompt(config: dict[str, Any], *messages: dict[str, Any], **request: Any) -> str:
    return render_chat(PromptSettings.of(config), {"messages": list(messages), **request})


def user(content: Any = "Hi") -> dict[str, Any]:
    return {"role": "user", "content": content}


def line(config: dict[str, Any], document: Any) -> dict[str, object]:
    return prompt_line(config, json.dumps(document))


# Messages.


def test_messages_are_rendered_joined_and_rendered_as_a_whole() -> None:
    assert prompt(CHAT, {"role": "system", "content": "Be brief."}, user()) == (
        "<system>Be brief.</>\n<user>Hi</>\n<assistant>"
    )


def test_messages_are_joined_by_what_the_configuration_says() -> None:
    config = {"template": {**CHAT["template"], "join_chat_messages_by_character": ""}}
    assert prompt(config, user("a"), user("b")) == "<user>a</><user>b</>\n<assistant>"


def test_a_message_of_which_its_template_makes_nothing_is_left_out() -> None:
    config = {"template": {"chat_message": '{{if eq .RoleName "user"}}{{.Content}}{{end}}'}}
    assert prompt(config, user("a"), {"role": "critic", "content": "b"}, user("c")) == "a\nc"


def test_without_a_template_roles_have_prefixes() -> None:
    config = {"roles": {"user": "USER: ", "assistant": "BOT: "}}
    messages = [user("a"), {"role": "assistant", "content": "b"}, {"role": "other", "content": "c"}, user("")]
    assert prompt(config, *messages) == "USER: a\nBOT: b\nc\n"


def test_without_a_template_calls_follow_as_json() -> None:
    call = {"id": "c<1>", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    as_json = '[{"index":0,"id":"c\\u003c1\\u003e","type":"function","function":{"name":"f","arguments":"{}"}}]'
    message = {"role": "assistant", "content": "Wait.", "tool_calls": [call]}
    assert prompt({"roles": {"assistant": "BOT:"}}, message) == f"BOT:Wait.\nBOT: {as_json}"
    assert prompt({}, {**message, "content": None}) == as_json
    legacy = {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}
    assert prompt({}, legacy) == '{"arguments":"{}","name":"f"}'


def test_a_call_may_have_a_role_of_its_own() -> None:
    config = {
        "roles": {"assistant": "BOT", "assistant_function_call": "CALL"},
        "template": {"chat_message": "{{.Role}} {{.RoleName}}"},
    }
    message = {"role": "assistant", "function_call": {"name": "f"}}
    assert (
        prompt(config, message, {"role": "assistant", "content": "x"}) == "CALL assistant_function_call\nBOT assistant"
    )


def test_the_system_prompt_of_the_configuration_gives_way_to_that_of_a_chat_without_message_template() -> None:
    chat = "{{.SystemPrompt}}|{{.SuppressSystemPrompt}}|{{.Input}}"
    system = {"role": "system", "content": "Mine"}
    config = {"system_prompt": "Sys", "template": {"chat": chat}}
    assert prompt(config, user()) == "Sys|false|Hi"
    assert prompt(config, system, user()) == "Sys|true|Mine\nHi"
    config["template"]["chat_message"] = "{{.Content}}"  # type: ignore[index]
    assert prompt(config, system, user()) == "Sys|false|Mine\nHi"


def test_a_message_knows_its_place_and_whether_a_grammar_limits_the_answer() -> None:
    config = {"template": {"chat_message": "{{.MessageIndex}}{{.LastMessage}}{{.Function}}"}}
    messages = [user("a"), user("b")]
    assert prompt(config, *messages) == "0falsefalse\n1truefalse"
    assert prompt(config, *messages, response_format={"type": "json_object"}) == "0falsefalse\n1truetrue"
    assert prompt(config, *messages, tools=[WEATHER]) == "0falsefalse\n1truetrue"


def test_effort_and_metadata_reach_the_template() -> None:
    config = {"template": {"chat": '{{.ReasoningEffort}} {{.Metadata.a}} {{index .Metadata "b"}}'}}
    assert prompt(config, user(), reasoning_effort="low", metadata={"a": "1"}) == "low 1 "


def test_pictures_and_sounds_become_marks_that_are_counted_through_the_chat() -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    content = [{"type": "text", "text": "See"}, picture, sound, {"type": "text", "text": " this"}]
    assert prompt({}, user(content)) == "<__media__><__media__>See this"
    config = {"template": {"multimodal": "{{range .Images}}<{{add1 .ID}}>{{end}}{{.Text}}"}}
    assert prompt(config, user([picture, picture]), user([picture])) == "<1><2>\n<3>"


@pytest.mark.parametrize(
    "content",
    [
        3,
        [3],
        [{"type": "file"}],
        [{"type": "image_url", "image_url": "x"}],
        [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}],
    ],
)
def test_content_that_cannot_be_shown_to_the_model_is_refused(content: Any) -> None:
    with pytest.raises(InvalidInput):
        prompt(CHAT, user(content))


# Tools.


def test_tools_come_with_one_for_answering_unless_it_is_off() -> None:
    assert prompt(TOOLS, user(), tools=[WEATHER]) == "weather;answer;<user>Hi</>"
    assert prompt({**TOOLS, "function": {"disable_no_action": True}}, user(), tools=[WEATHER]) == "weather;<user>Hi</>"
    assert prompt({**TOOLS, "function": {"grammar": {"disable": True}}}, user(), tools=[WEATHER]) == (
        "weather;<user>Hi</>"
    )
    assert prompt(TOOLS, user(), tools=[WEATHER, TIME]) == "weather;time;<user>Hi</>"
    named = {**TOOLS, "function": {"no_action_function_name": "reply"}}
    assert prompt(named, user(), tools=[WEATHER]) == "weather;reply;<user>Hi</>"


def test_old_functions_come_before_tools() -> None:
    assert prompt(TOOLS, user(), functions=[{"name": "old"}], tools=[TIME]) == "old;time;<user>Hi</>"


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("auto", "weather;answer;"),
        ("required", "weather;"),
        ({"type": "function", "function": {"name": "weather"}}, "weather;"),
        ({"type": "function", "name": "weather"}, "weather;"),
        ('{"type": "function", "function": {"name": "weather"}}', "weather;"),
    ],
)
def test_the_request_may_choose_a_tool(choice: Any, names: str) -> None:
    assert prompt(TOOLS, user(), tools=[WEATHER], tool_choice=choice) == f"{names}<user>Hi</>"


def test_without_tools_or_with_none_chosen_the_chat_template_is_taken() -> None:
    assert prompt(TOOLS, user(), tools=[WEATHER], tool_choice="none") == "<user>Hi</>\n<assistant>"
    assert prompt(TOOLS, user(), tools=[WEATHER], function_call="none") == "<user>Hi</>\n<assistant>"
    assert prompt(TOOLS, user(), tools=[]) == "<user>Hi</>\n<assistant>"
    assert not offered_tools(PromptSettings(), {"tools": [WEATHER], "tool_choice": "none"}).functions


def test_a_choice_of_a_tool_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidInput, match="there is no tool 'x'"):
        prompt(TOOLS, user(), tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "x"}})


def test_a_failing_template_is_an_error_and_tools_are_not_lost() -> None:
    config = {"template": {"chat_message": "a\n{{index .FunctionCall `name`}}"}}
    with pytest.raises(TemplateFailed) as failed:
        prompt(config, {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]})
    assert (failed.value.template, failed.value.line) == ("chat_message", 2)


# Configurations.


def test_refusals_name_each_template_that_cannot_be_used() -> None:
    config = {"template": {"chat": "{{.Input}}", "chat_message": "\n{{now}}", "function": "{{if}}"}}
    assert [str(problem) for problem in refusals(config)] == [
        "template chat_message, line 2: the function now is not offered",
        "template function, line 1: a value is missing in if",
    ]


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"template": "x"}, "template"),
        ({"template": {"chat": [3]}}, "template.chat"),
        ({"template": {"use_tokenizer_template": "yes"}}, "template.use_tokenizer_template"),
        ({"roles": ["user"]}, "roles"),
        ({"roles": {"user": []}}, "roles.user"),
        ({"function": {"grammar": "none"}}, "function.grammar"),
        ({"function": {"grammar": {"disable": 1}}}, "function.grammar.disable"),
    ],
)
def test_a_configuration_of_wrong_types_is_refused_with_its_key(config: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        PromptSettings.of(config)
    assert refused.value.field == field
    assert refusals(config) == []


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{.Input}}", None),
        ("say: {{.Input}}\n", None),
        ("", None),
        ("a b", None),
        ("chatml\n", "template chat, line 1: 'chatml' is the name of a file, not a template: write its text here"),
        ("\n{{-.Input}}", "template chat, line 2: a space is missing after {{-: write {{- .Input"),
        ("{{.Input-}}", "template chat, line 1: a space is missing before -}}"),
    ],
)
def test_what_is_wrong_with_a_template_is_told_with_its_line(source: str, problem: str | None) -> None:
    found = template_problem(source, "chat")
    assert (found and str(found)) == problem
    assert found is None or found.key == "template.chat"


def test_tools_have_a_place_where_a_template_shows_them() -> None:
    assert has_place_for_tools(PromptSettings(templates={"function": "x"}))
    assert has_place_for_tools(PromptSettings(templates={"chat": "{{range .Functions}}{{end}}"}))
    assert not has_place_for_tools(PromptSettings(templates={"chat": "{{.Input}}"}))


def test_the_models_own_effort_is_for_requests_that_name_none() -> None:
    settings = PromptSettings(templates={"chat": "{{.ReasoningEffort}}"}, reasoning_effort="low")
    assert render_chat(settings, {"messages": []}) == "low"
    assert render_chat(settings, {"messages": [], "reasoning_effort": "high"}) == "high"


# Lines of `corral models prompt`.

EVERYTHING: dict[str, Any] = {
    "system_prompt": "S",
    "template": {
        **CHAT["template"],
        "completion": "{{.SystemPrompt}}>{{.Input}}",
        "edit": "{{.Instruction}}:{{.Input}}",
        "function": "{{len .Functions}}",
        "multimodal": "{{len .Images}}{{.Text}}",
    },
}


@pytest.mark.parametrize(
    ("document", "answer"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, {"prompt": "<user>a</>\n<assistant>"}),
        ({"prompt": "Once"}, {"prompt": "S>Once"}),
        ({"prompt": ""}, {"prompt": "S>"}),
        ({"prompt": ["a", "b"]}, {"prompt": ["S>a", "S>b"]}),
        ({"instruction": "Fix", "input": "x"}, {"prompt": "Fix:x"}),
        ({"endpoint": "completion", "request": {"prompt": "a"}}, {"prompt": "S>a"}),
        ({"endpoint": "edit", "input": "a", "instruction": "b", "prompt": "c"}, {"prompt": "b:a"}),
        (
            {"endpoint": "completion", "request": {"prompt": "a"}, "config": {"system_prompt": "T"}},
            {"prompt": "T>a"},
        ),
        (
            {"request": {"prompt": "a"}, "config": {"template": {"completion": "{{.Input}}"}}},
            {"prompt": "a"},
        ),
        (
            {
                "endpoint": "chat",
                "request": {"messages": []},
                "config": {"template": {"use_tokenizer_template": True}},
            },
            {"use_tokenizer_template": True},
        ),
        ({"template": "chat", "data": {"Input": "x"}}, {"prompt": "x\n<assistant>"}),
        ({"template": "function", "data": {"Functions": [{"name": "a"}]}}, {"prompt": "1"}),
        ({"template": "chat_message", "data": {"RoleName": "r", "Content": "c"}}, {"prompt": "<r>c</>"}),
        ({"template": "multimodal", "data": {"Text": "t", "TotalImages": 3, "ImagesInMessage": 2}}, {"prompt": "2t"}),
        ({"template": "multimodal", "data": {"Text": "t", "Images": [{"ID": 0}]}}, {"prompt": "1t"}),
    ],
)
def test_a_line_is_answered(document: Any, answer: dict[str, object]) -> None:
    assert line(EVERYTHING, document) == answer


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "a request has messages, prompt or instruction"),
        ('{"endpoint": "x", "request": {}}', "endpoint: must be chat, completion or edit"),
        ('{"prompt": null}', "prompt: must be a text or a list of texts"),
        ('{"messages": 3}', "messages: must be a list"),
        ('{"messages": [{"role": 1}]}', "messages[0].role: must be a text"),
        ('{"template": "x"}', "template: must be one of chat, chat_message"),
        ('{"template": "edit"}', "template: the configuration has no template edit"),
        ('{"template": "chat", "data": {"Inputs": ""}}', "data.Inputs: the template chat gets no such field"),
        ('{"template": "chat", "data": {"MessageIndex": 1.5}}', "data.MessageIndex: must be a whole number"),
        ('{"template": "chat", "data": {"Functions": [{"parameters": {"a": 1e999}}]}}', "must be a number that JSON"),
        ("[" * 100_000, "the values are nested too deeply"),
        ('{"template": "chat", "data": {"MessageIndex": 1e999}}', "data.MessageIndex: must be a whole number"),
        (
            '{"template": "multimodal", "data": {"ImagesInMessage": 1e9}}',
            "ImagesInMessage: must be between 0 and 10000",
        ),
    ],
)
def test_a_line_that_cannot_be_answered_says_why(text: str, error: str) -> None:
    answer = prompt_line(CHAT, text)
    assert set(answer) == {"error"}
    assert error in str(answer["error"])


def test_a_refused_template_is_an_error_of_the_line_that_needs_it() -> None:
    config = {"template": {"chat": "{{nosuch .Input}}", "completion": "{{.Input}}"}}
    assert "the function nosuch is not offered" in str(line(config, {"messages": []})["error"])
    assert line(config, {"prompt": "a"}) == {"prompt": "a"}
