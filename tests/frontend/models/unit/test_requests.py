"""What a model's configuration says about its requests, as an adapter is told it."""

from datetime import date

import pytest
import yaml

from corral.base.errors import InvalidInput
from corral.frontend.models.decide.model import read_model
from corral.frontend.serving.loading.model_loader import adapter_model
from corral.wire.adapter import AdapterModel, PromptTemplates, RequestDefaults

SMALL = {"name": "small", "backend": "echo", "parameters": {"model": "small.gguf"}}
FULL = """
name: full
backend: echo
system_prompt: be kind
stopwords: ["<end>", "</s>"]
mirostat: 2
mirostat_eta: 0.2
mirostat_tau: 4
threads: 3
tts:
  voice: anna
reasoning_effort: low
reasoning:
  disable: true
chat_template_kwargs:
  depth: 2
template:
  use_tokenizer_template: true
  chat: "{{.Input}} <assistant>"
  chat_message: "<{{.RoleName}}> {{.Content}}"
  completion: "{{.Input}}"
  edit: "{{.Instruction}} {{.Input}}"
  join_chat_messages_by_character: ""
  function: "{{toJson .Functions}}"
  reply_prefix: "<think>"
  multimodal: "{{.Text}}"
roles: {user: "HUMAN: ", "assistant": 1}
function:
  grammar: {disable: true}
  disable_no_action: true
  no_action_function_name: talk
  no_action_description_name: say it
parameters:
  model: full.gguf
  temperature: 1
  top_p: 0.5
  top_k: 10
  min_p: 0.1
  typical_p: 0.9
  tfz: 0.8
  max_tokens: 99
  repeat_penalty: 1.1
  repeat_last_n: 64
  frequency_penalty: 0.3
  presence_penalty: 0.4
  seed: 7
  ignore_eos: true
  n_keep: 12
  language: de
  translate: true
n_draft: 6
prompt_cache_all: false
"""


def translated_by(config: object, *, file: str = "") -> AdapterModel:
    return adapter_model(read_model(config, source="x"), file=file, threads=5)


def test_what_is_not_said_is_localais_default() -> None:
    assert translated_by(SMALL) == AdapterModel(
        name="small", identity="small.gguf", defaults=RequestDefaults(threads=5)
    )


def test_an_adapter_is_told_whether_the_backend_takes_grammars() -> None:
    assert translated_by(SMALL | {"backend": "cuda12-llama-cpp"}).takes_grammars


def test_an_adapter_is_told_that_a_model_takes_no_media_where_that_is_certain() -> None:
    llama = SMALL | {"backend": "cuda12-llama-cpp"}
    assert translated_by(llama).takes_no_media
    assert not translated_by(llama | {"mmproj": "mmproj.gguf"}).takes_no_media
    assert not translated_by(SMALL | {"backend": "vllm"}).takes_no_media


def test_every_word_of_the_configuration_arrives() -> None:
    assert translated_by(yaml.safe_load(FULL), file="/m/full.gguf") == AdapterModel(
        name="full",
        identity="full.gguf",
        file="/m/full.gguf",
        voice="anna",
        reasoning_effort="low",
        thinks=False,
        template_arguments={"depth": 2},
        use_tokenizer_template=True,
        system_prompt="be kind",
        reply_prefix="<think>",
        templates=PromptTemplates(
            chat="{{.Input}} <assistant>",
            chat_message="<{{.RoleName}}> {{.Content}}",
            completion="{{.Input}}",
            edit="{{.Instruction}} {{.Input}}",
            joined_by="",
            function="{{toJson .Functions}}",
            multimodal="{{.Text}}",
            roles={"user": "HUMAN: ", "assistant": "1"},
            grammar_disabled=True,
            no_action_disabled=True,
            no_action_name="talk",
            no_action_description="say it",
        ),
        defaults=RequestDefaults(
            temperature=1.0,
            top_p=0.5,
            top_k=10,
            min_p=0.1,
            typical_p=0.9,
            tail_free_z=0.8,
            max_tokens=99,
            repeat_penalty=1.1,
            repeat_last_n=64,
            frequency_penalty=0.3,
            presence_penalty=0.4,
            mirostat=2,
            mirostat_eta=0.2,
            mirostat_tau=4.0,
            seed=7,
            stop=("<end>", "</s>"),
            threads=3,
            ignore_eos=True,
            n_keep=12,
            n_draft=6,
            prompt_cache_all=False,
            language="de",
            translate=True,
        ),
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"system_prompt": ["x"]}, "system_prompt"),
        ({"stopwords": "END"}, "stopwords"),
        ({"template": {"chat": {}}}, "template.chat"),
        ({"template": {"function": []}}, "template.function"),
        ({"roles": {"user": []}}, "roles.user"),
        ({"function": {"disable_no_action": "perhaps"}}, "function.disable_no_action"),
        ({"template": {"chat": "\ud800"}}, "template.chat"),
        ({"stopwords": ["\udfff"]}, "stopwords"),
        ({"mirostat_eta": float("inf")}, "mirostat_eta"),
        ({"reasoning": {"disable": "yes"}}, "reasoning.disable"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {1: 2}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": float("nan")}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": "\ud800"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": date(2026, 1, 1)}}, "chat_template_kwargs"),
        ({"parameters": {"model": "m", "temperature": float("nan")}}, "parameters.temperature"),
        ({"parameters": {"model": "m", "top_k": 1.5}}, "parameters.top_k"),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_key(change: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_model({**SMALL, **change}, source="x")

    assert refused.value.field == field
