"""Messages of the gRPC contract become prompts."""

import pytest

from corral.adapter.dialects.templates import render_chat, render_completion, shows_system_prompt
from corral.rpc.messages import Message
from corral.templates import TemplateFailed, TemplateRefused
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
        '<|im_start|>assistant\nFunction call:\n[{"index":0,"id":"c","type":"","function":{"arguments":""}}]\n'
        "<|im_end|>\n<|im_start|>assistant\n"
    )


def test_without_templates_the_contents_are_the_prompt() -> None:
    messages = [Message(role="user", content="a"), Message(role="user", content="b")]
    assert render_chat(messages, PromptTemplates()) == "a\nb\n"
    assert render_completion("x", PromptTemplates()) == "x"


def test_a_template_that_cannot_be_used_and_one_that_fails_are_told_apart() -> None:
    messages = [Message(role="user", content="a")]
    with pytest.raises(TemplateRefused, match="template chat, line 1: the function now is not offered"):
        render_chat(messages, PromptTemplates(chat="{{now}}"))
    with pytest.raises(TemplateFailed, match=r"template chat_message, line 1, .*: there is no field Missing"):
        render_chat(messages, PromptTemplates(chat_message="{{.Missing}}"))


def test_the_models_system_prompt_reaches_a_template_that_asks_for_it() -> None:
    templates = PromptTemplates(chat="{{.SystemPrompt}}: {{.Input}}", completion="{{.SystemPrompt}}> {{.Input}}")
    assert shows_system_prompt(templates)
    assert not shows_system_prompt(CHATML)
    assert render_chat([Message(role="user", content="a")], templates, "Be kind") == "Be kind: a"
    assert render_completion("a", templates, "Be kind") == "Be kind> a"
