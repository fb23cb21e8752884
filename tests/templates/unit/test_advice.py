"""What authors of templates are told before anybody asks their model."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.templates import TemplateFailed, TemplateRefused, advice, execute, parse
from corral.templates.template_data import data_for

UNSEEN = "system_prompt has no effect: no template shows it, as {{.SystemPrompt}} would"


@pytest.mark.parametrize(
    ("template", "is_unseen"),
    [
        ({"chat": "{{.Input}}"}, True),
        ({"chat_message": "{{.Content}}", "function": "{{.Input}}"}, True),
        ({"chat": "{{.Input}}", "function": "{{.SystemPrompt}}{{.Input}}"}, False),
        ({"chat": "{{.Input}}", "use_tokenizer_template": True}, False),
        ({"completion": "{{.Input}}"}, False),
        ([], False),
    ],
)
def test_a_system_prompt_that_no_template_shows_is_told(template: Any, is_unseen: bool) -> None:
    found = advice({"system_prompt": "S", "template": template})
    assert found == ([("system_prompt", UNSEEN)] if is_unseen else [])
    assert advice({"template": template}) == []


@pytest.mark.parametrize(
    ("name", "source", "fields"),
    [
        ("function", "<{{.RoleName}}>\n{{if .Content}}{{.Content}}{{end}}", [(1, "RoleName"), (2, "Content")]),
        ("chat_message", "{{.RoleName}}{{if .Content}}{{.Content}}{{end}}", []),
        ("chat", "{{range .Functions}}{{.Name}}{{$.Nam}}{{else}}{{.X}}{{end}}", [(1, "Nam"), (1, "X")]),
        ("chat", "{{with .Metadata}}{{.anything}}{{else}}{{.Y}}{{end}}", [(1, "Y")]),
        (
            "chat",
            "{{$x := .Inputt}}{{print (len .Foo) | upper}}{{(.Bar).baz}}",
            [(1, "Inputt"), (1, "Foo"), (1, "Bar")],
        ),
        ("chat", '{{define "a"}}{{.b}}{{$.c}}{{end}}{{template "a" .D}}', [(1, "D")]),
        ("multimodal", "{{range .Images}}{{.ID}}{{end}}{{.Texts}}", [(1, "Texts")]),
        ("chat", "{{now}}{{.X}}", []),
        ("chat", "{{. | toJson}}{{$ | toJson}}", []),
    ],
)
def test_fields_that_are_never_there_are_told(name: str, source: str, fields: list[tuple[int, str]]) -> None:
    key = f"template.{name}"
    assert advice({"template": {name: source}}) == [
        (key, f"{key}: line {line} of the template: there is no .{field} here, and a request that comes there fails")
        for line, field in fields
    ]


PIECES = st.sampled_from(
    [
        *("{{.Input}}", "{{.Nope}}", "{{$.Nope}}", "{{range .Functions}}", "{{with .Metadata}}", "{{if true}}"),
        *("{{else}}", "{{end}}", "{{print .Nope}}", "{{(print .Input).Nope}}", "{{.Metadata.Nope}}", "text"),
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=8).map("".join))
def test_a_template_that_fails_for_a_field_was_warned_of(source: str) -> None:
    data = data_for("chat", {"Input": "x", "Metadata": {"a": "b"}, "Functions": []})
    try:
        execute(parse(source, "chat"), data)
    except TemplateRefused:
        return
    except TemplateFailed as failure:
        if "there is no field Nope in templates.PromptTemplateData" in str(failure):
            assert any(".Nope" in each.sentence for each in advice({"template": {"chat": source}}))
