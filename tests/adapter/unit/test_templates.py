"""Requests become prompts by the templates of a model."""

import pytest

from corral.adapter.dialects.openai import chat_prompt, completion_prompts
from corral.adapter.dialects.requests import ChatMessage, ChatRequest
from corral.templates import TemplateFailed, TemplateRefused
from corral.wire.adapter import AdapterModel, PromptTemplates

CHATML = PromptTemplates(
    chat_message=(
        "<|im_start|>{{ .RoleName }}\n"
        '{{ if .FunctionCall -}}\nFunction call:\n{{ else if eq .RoleName "tool" -}}\nFunction response:\n{{ end -}}\n'
        "{{ if .Content -}}\n{{.Content }}\n{{ end -}}\n"
        "{{ if .FunctionCall -}}\n{{toJson .FunctionCall}}\n{{ end -}}<|im_end|>\n"
    ),
    chat="{{.Input -}}\n<|im_start|>assistant\n",
)


def rendered(templates: PromptTemplates, *messages: ChatMessage, system_prompt: str = "") -> str:
    model = AdapterModel(name="m", templates=templates, system_prompt=system_prompt)
    return chat_prompt(ChatRequest(messages=list(messages)), model)


def test_a_gallery_template_gives_the_models_format() -> None:
    prompt = rendered(
        CHATML,
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="Hi {{.Name}}"),
        ChatMessage(role="tool", content="42"),
        ChatMessage(role="assistant", tool_calls=[{"id": "c"}]),
    )
    assert prompt == (
        "<|im_start|>system\nBe brief.\n<|im_end|>\n\n"
        "<|im_start|>user\nHi {{.Name}}\n<|im_end|>\n\n"
        "<|im_start|>tool\nFunction response:\n42\n<|im_end|>\n\n"
        '<|im_start|>assistant\nFunction call:\n[{"index":0,"id":"c","type":"","function":{"arguments":""}}]\n'
        "<|im_end|>\n<|im_start|>assistant\n"
    )


def test_without_templates_the_contents_are_the_prompt() -> None:
    messages = [ChatMessage(role="user", content="a"), ChatMessage(role="user", content="b")]
    assert rendered(PromptTemplates(), *messages) == "a\nb"
    assert completion_prompts(["x", "y"], AdapterModel(name="m")) == ["x", "y"]


def test_a_template_that_cannot_be_used_and_one_that_fails_are_told_apart() -> None:
    message = ChatMessage(role="user", content="a")
    with pytest.raises(TemplateRefused, match="template chat, line 1: the function now is not offered"):
        rendered(PromptTemplates(chat="{{now}}"), message)
    with pytest.raises(TemplateFailed, match=r"template chat_message, line 1, .*: there is no field Missing"):
        rendered(PromptTemplates(chat_message="{{.Missing}}"), message)


def test_the_models_system_prompt_reaches_a_template_that_asks_for_it() -> None:
    templates = PromptTemplates(chat="{{.SystemPrompt}}: {{.Input}}", completion="{{.SystemPrompt}}> {{.Input}}")
    message = ChatMessage(role="user", content="a")
    assert rendered(templates, message, system_prompt="Be kind") == "Be kind: a"
    model = AdapterModel(name="m", templates=templates, system_prompt="Be kind")
    assert completion_prompts(["a"], model) == ["Be kind> a"]
