"""The part of Go's templates that chat templates use."""

import pytest

from corral.adapter.dialects.templates import TemplateNotUsable, render, render_chat, render_completion
from corral.rpc.messages import Message
from corral.wire.adapter import PromptTemplates

CHATML = PromptTemplates(
    chat_message=(
        "<|im_start|>{{ .RoleName }}\n"
        '{{ if .FunctionCall -}}\nFunction call:\n{{ else if eq .RoleName "tool" -}}\nFunction response:\n{{ end -}}\n'
        "{{ if .Content -}}\n{{.Content }}\n{{ end -}}\n"
        "{{ if .FunctionCall -}}\n{{toJson .FunctionCall}}\n{{ end -}}<|im_end|>\n"
    ),
    chat="{{.Input -}}\n<|im_start|>assistant\n",
)
FIELDS = {"Name": "Ann", "Empty": "", "Yes": True, "Number": 3}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("plain", "plain"),
        ("Hi {{.Name}}!", "Hi Ann!"),
        ("a  {{- .Name -}}  b", "aAnnb"),
        ("a {{.Name}} b", "a Ann b"),
        ("{{if .Yes}}y{{else}}n{{end}}", "y"),
        ("{{if .Empty}}y{{else if .Yes}}z{{end}}", "z"),
        ("{{if not .Yes}}y{{end}}", ""),
        ('{{if and .Yes (eq .Name "Ann" "Bob")}}y{{end}}', "y"),
        ('{{if or .Empty (ne .Name "Ann")}}y{{else}}n{{end}}', "n"),
        ("{{if .Yes}}{{if .Empty}}a{{else}}b{{end}}c{{end}}d", "bcd"),
        ("{{ .Name | upper | toJson }}", '"ANN"'),
        ("{{.Number}}{{.Yes}}{{`raw`}}{{/* note */}}", "3trueraw"),
    ],
)
def test_a_template_is_rendered(template: str, text: str) -> None:
    assert render(template, FIELDS) == text


@pytest.mark.parametrize(
    "template",
    [
        "{{.Missing}}",
        "{{if .Yes}}",
        "{{end}}",
        "{{else}}",
        "{{range .Name}}{{end}}",
        "{{ .Name .Name }}",
        "{{ (eq .Name }}",
        "{{ ? }}",
        "{{ eq }}",
        "{{ not .Yes .Yes }}",
        "{{if .Yes}}a{{else}}b{{else}}c{{end}}",
    ],
)
def test_what_we_cannot_render_is_refused(template: str) -> None:
    with pytest.raises(TemplateNotUsable):
        render(template, FIELDS)


def test_a_gallery_template_gives_the_models_format() -> None:
    messages = [
        Message(role="system", content="Be brief."),
        Message(role="user", content="Hi {{.Name}}"),
        Message(role="tool", content="42"),
        Message(role="assistant", tool_calls='[{"id": "c"}]'),
    ]
    assert render_chat(messages, CHATML) == (
        "<|im_start|>system\nBe brief.\n<|im_end|>\n\n"
        "<|im_start|>user\nHi {{.Name}}\n<|im_end|>\n\n"
        "<|im_start|>tool\nFunction response:\n42\n<|im_end|>\n\n"
        '<|im_start|>assistant\nFunction call:\n[{"id": "c"}]\n<|im_end|>\n<|im_start|>assistant\n'
    )


def test_without_templates_the_contents_are_the_prompt() -> None:
    messages = [Message(role="user", content="a"), Message(role="user", content="b")]
    assert render_chat(messages, PromptTemplates()) == "a\nb\n"
    assert render_completion("x", PromptTemplates()) == "x"
