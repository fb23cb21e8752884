"""Templates of strangers: whatever they say, they end soon, with a text or with an error of ours."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.templates import (
    PromptSettings,
    TemplateFailed,
    TemplateRefused,
    execute,
    parse,
    prompt_line,
    render_chat,
    render_completions,
)
from corral.templates.functions import FUNCTIONS
from corral.templates.template_data import data_for

DATA = data_for(
    "chat",
    {
        "Input": "Hi é",
        "MessageIndex": 2,
        "Metadata": {"a": "b"},
        "Functions": [{"name": "f", "parameters": {"a": [1, None, "x"], "b": {"c": True}}}],
    },
)


@pytest.mark.parametrize(
    "template",
    [
        "{{range until 100000}}{{range until 100000}}{{end}}{{end}}",
        "{{range 1000000000}}x{{end}}",
        "{{repeat 1000000000 `x`}}",
        "{{indent 100000000 `x`}}",
        "{{until 1000000000}}",
        "{{printf `%1000000000d` 1}}",
        '{{define "a"}}{{template "a" .}}{{end}}{{template "a" .}}',
        "{{template `prompt` .}}",
        "{{$x := `xxxxxxxxxxxxxxxx`}}{{range until 1000}}{{$x = print $x $x}}{{end}}{{$x}}",
        "{{$x := list 1}}{{range until 1000}}{{$x = list $x $x}}{{end}}{{$x}}",
        "{{$x := list 1}}{{range until 40}}{{$x = list $x $x}}{{end}}{{has $x (list $x)}}",
        "{{$x := list 1}}{{range until 1000}}{{$x = concat $x $x}}{{end}}",
        "{{$x := dict}}{{$y := set $x `a` $x}}{{$x}}",
        "{{$x := dict}}{{$y := set $x `a` $x}}{{toJson $x}}",
        "{{$x := replace `` (repeat 5000 `y`) (repeat 5000 `x`)}}",
        "{{join (repeat 1000000 `y`) (until 1000)}}",
        "{{range until 100000}}{{repeat 1000 `x`}}{{end}}",
        "{{title (repeat 2000000 `é`)}}",
        "{{fromJson (repeat 700000 `[],`)}}",
        "{{splitList `` (repeat 200000 `x`)}}",
        "{{$x := repeat 8000000 `\x01`}}{{toJson $x | len}}",
        "{{define `a`}}{{range until 9}}{{template `a` .}}{{end}}{{end}}{{template `a` .}}",
        "x" * 200_000,
    ],
)
def test_too_much_work_is_an_error(template: str) -> None:
    with pytest.raises((TemplateFailed, TemplateRefused)):
        execute(parse(template), DATA)


def test_a_large_prompt_is_not_too_much() -> None:
    data = data_for("chat", {"Input": "x" * 4_000_000})
    assert len(execute(parse("{{.Input | trim}}"), data)) == 4_000_000


def test_the_templates_of_a_chat_work_within_one_limit() -> None:
    """A template that is cheap for one message is not for a million of them."""
    settings = PromptSettings(templates={"chat_message": "{{range until 1000}}{{$x := .}}{{end}}{{.Content}}"})
    messages = [{"role": "user", "content": "a"}] * 1000
    assert render_chat(settings, {"messages": messages[:100]}) == "\n".join("a" * 100)
    with pytest.raises(TemplateFailed, match=r"template chat_message, line 1.*: the template does too much work"):
        render_chat(settings, {"messages": messages})


def test_a_long_chat_is_not_too_much() -> None:
    config = {"template": {"chat_message": "<{{.RoleName}}>{{if .Content}}{{.Content}}{{end}}</>"}}
    messages = [{"role": "user", "content": "a" * 100}] * 20_000
    assert len(render_chat(PromptSettings.of(config), {"messages": messages})) == 20_000 * 109 + 19_999


def test_so_do_those_of_many_completions() -> None:
    settings = PromptSettings(templates={"completion": "{{range until 1000}}{{$x := .}}{{end}}"})
    with pytest.raises(TemplateFailed, match="template completion"):
        render_completions(settings, {"prompt": ["a"] * 1000})


def test_a_great_many_pictures_are_counted_in_the_limit_too() -> None:
    settings = PromptSettings(templates={"multimodal": "{{range until 100000}}{{end}}"})
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}] * 100
    with pytest.raises(TemplateFailed, match="template multimodal"):
        render_chat(settings, {"messages": messages})


PIECES = st.sampled_from(
    [
        *(
            "{{",
            "}}",
            "{{- ",
            " -}}",
            "{{/*",
            "*/}}",
            " ",
            "(",
            ")",
            "|",
            ".",
            "$",
            "$x",
            ":=",
            "=",
            ",",
            "\n",
            "-",
            "'",
        ),
        *('"a"', "`b`", "'c'", "1", "2.5", "nil", "true", "é", "\\", '"', "%d", "text", "0x"),
        *("if ", "else", "else if ", "end", "range ", "with ", "define ", "template ", "block ", "break", "continue"),
        *(".Input", ".Functions", ".Metadata", ".Missing", ".MessageIndex", "{{end}}", "{{else}}"),
        *(f"{name} " for name in sorted(FUNCTIONS)),
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES | st.text(max_size=3), max_size=30).map("".join))
def test_any_text_is_rendered_or_refused(template: str) -> None:
    with suppress(TemplateRefused, TemplateFailed):
        assert isinstance(execute(parse(template), DATA), str)


EXPRESSIONS = st.recursive(
    st.sampled_from(
        [
            *(".", "$", ".Input", ".Functions", ".Metadata", ".Metadata.x", ".MessageIndex"),
            *("nil", "true", "-3", "2", "1.5", '"a b"', '"%v %d"', '"[1]"', "(list)", '(dict "a" 1)'),
        ]
    ),
    lambda inner: st.builds(
        lambda name, arguments: f"({' '.join([name, *arguments])})",
        st.sampled_from(sorted(FUNCTIONS)),
        st.lists(inner, max_size=4),
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(EXPRESSIONS)
def test_any_expression_has_a_value_or_fails(expression: str) -> None:
    with suppress(TemplateFailed, TemplateRefused):
        assert isinstance(execute(parse("{{" + expression + "}}"), DATA), str)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [
        *("messages", "prompt", "instruction", "input", "tools", "functions", "tool_choice", "metadata", "template"),
        *("data", "request", "config", "endpoint", "role", "content", "tool_calls", "function", "name", "type", "text"),
    ]
)
DOCUMENTS = st.recursive(
    JSON, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=15
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(KEYS, DOCUMENTS, max_size=4), st.dictionaries(KEYS, DOCUMENTS, max_size=3))
def test_any_line_has_exactly_one_answer(config: dict[str, object], document: dict[str, object]) -> None:
    answer = prompt_line(config, json.dumps(document))
    assert len(answer) == 1
    assert set(answer) <= {"prompt", "use_tokenizer_template", "error"}
