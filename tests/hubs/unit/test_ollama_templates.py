"""Templates of Ollama that LocalAI's can express give the same prompts; others are refused with what they use."""

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.base.errors import InvalidInput
from corral.hubs.ollama import convert_template
from corral.templates.prompts import PromptSettings, refusals, render_chat

CHATML = """{{ if .System }}<|im_start|>system
{{ .System }}<|im_end|>
{{ end }}{{ if .Prompt }}<|im_start|>user
{{ .Prompt }}<|im_end|>
{{ end }}<|im_start|>assistant
{{ .Response }}<|im_end|>
"""
VICUNA = "{{ .System }}\nUSER: {{ .Prompt }}\nASSISTANT: "
TRIMMED = "{{- if .System }}\nS:{{ .System }}\n{{- end }}\nU:{{ .Prompt }}\nA:{{ .Response }}"


def rendered(template: str, *messages: tuple[str, str], system_prompt: str = "") -> str:
    config = {"template": convert_template(template), "system_prompt": system_prompt}
    assert refusals(config) == []
    return render_chat(
        PromptSettings.of(config), {"messages": [{"role": role, "content": content} for role, content in messages]}
    )


def test_a_chat_is_rendered_as_ollama_does() -> None:
    prompt = rendered(CHATML, ("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Who?"))
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_system_prompt_counts_where_a_chat_has_none() -> None:
    assert rendered(VICUNA, ("user", "Hi"), system_prompt="Be nice.") == "Be nice.\nUSER: Hi\nASSISTANT: "
    assert rendered(VICUNA, ("system", "Be."), ("user", "Hi"), system_prompt="x") == "Be.\nUSER: Hi\nASSISTANT: "


def test_blanks_are_trimmed_as_go_does() -> None:
    assert rendered(TRIMMED, ("system", "s"), ("user", "u")) == "\nS:s\nU:u\nA:"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ range .Messages }}{{ .Content }}{{ end }}", r"it uses {{ range .Messages }}"),
        ("[INST] {{ if .System }}{{ .System }}{{ end }}{{ .Prompt }}", "text before the part of the system"),
        ("{{ if .System }}{{ .Prompt }}{{ end }}", "inside of another part"),
        ("{{ .Prompt }}{{ .Prompt }}", "twice"),
        ("{{ .Response }}{{ .Prompt }}", "usual order"),
        ("{{ .System }}", "no place for the prompt"),
        ("{{ if .Prompt }}x{{ end }}", "no content"),
        ("{{ .Prompt }} {{ ", "not closed"),
        ("x" * 70000, "more than"),
    ],
)
def test_what_cannot_be_said_is_named(template: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        convert_template(template)


PIECES = st.sampled_from(["{{ .System }}", "{{ .Prompt }}", "{{ .Response }}", "{{ if .System }}", "{{- if .Prompt }}",
                          "{{ end }}", "{{ end -}}", " a ", "\n", "}}", "{{", "<s>", '"', "`"])  # fmt: skip


@given(st.lists(PIECES, max_size=12).map("".join))
def test_what_is_converted_is_always_a_template(template: str) -> None:
    try:
        converted = convert_template(template)
    except InvalidInput:
        return
    assert refusals({"template": converted}) == []
    assert "question" in rendered(template, ("user", "question"))


@pytest.mark.parametrize("filling", ["{{", "{{-", "{{ }}{{", "{{ .System -", "}}"])
def test_a_template_takes_time_by_its_length_only(filling: str) -> None:
    began = time.process_time()
    with suppress(InvalidInput):
        convert_template(filling * (64 * 1024 // len(filling)))
    assert time.process_time() - began < 2
