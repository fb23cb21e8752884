"""`corral models prompt`: one answer per line, whatever the line is, and without a fleet."""

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corral.cli.models import prompt as command

from .conftest import Corral

CONFIG = """\
template:
  chat_message: "<{{.RoleName}}> {{.Content}}"
  chat: "{{if .SystemPrompt}}[{{.SystemPrompt}}]{{end}}{{.Input}} <assistant>"
  function: "{{range .Functions}}({{.Name}}){{end}}{{.Input}}"
  completion: "complete: {{.Input}}"
  edit: "{{.Instruction}}: {{.Input}}"
function: {disable_no_action: yes}
"""
CHAT = {"messages": [{"role": "user", "content": "hi"}]}

Answers = Callable[..., list[object]]


@pytest.fixture
def answers(corral: Corral, home: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Give lines, or what becomes JSON, to a configuration."""

    def ask(*lines: object, config: str = CONFIG) -> list[object]:
        (home / "model.yaml").write_text(config)
        texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        source = io.TextIOWrapper(io.BytesIO(b"".join(text + b"\n" for text in texts)))
        monkeypatch.setattr(sys, "stdin", source)
        outcome = corral("models", "prompt", str(home / "model.yaml"))
        assert outcome.code == 0
        assert outcome.err == ""
        return [json.loads(line) for line in outcome.out.splitlines()]

    return ask


def test_each_form_of_a_line_is_answered(answers: Answers) -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}]
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    assert answers(
        CHAT,
        {"prompt": "once"},
        {"instruction": "shorten", "input": "a text"},
        {**CHAT, "tools": tools},
        {"messages": [{"role": "user", "content": [picture, {"type": "text", "text": "what?"}]}]},
        {"endpoint": "chat", "request": CHAT, "config": {"system_prompt": "brief"}},
        {"endpoint": "completion", "request": {"prompt": ["a", "b"]}},
        {"template": "chat", "data": {"Input": "alone", "SystemPrompt": "é"}},
        {"endpoint": "chat", "request": CHAT, "config": {"template": {"use_tokenizer_template": True}}},
        {"template": "multimodal", "data": {"Text": "see", "TotalImages": 1, "ImagesInMessage": 1}},
    ) == [
        {"prompt": "<user> hi <assistant>"},
        {"prompt": "complete: once"},
        {"prompt": "shorten: a text"},
        {"prompt": "(weather)<user> hi"},
        {"prompt": "<user> <__media__>what? <assistant>"},
        {"prompt": "[brief]<user> hi <assistant>"},
        {"prompt": ["complete: a", "complete: b"]},
        {"prompt": "[é]alone <assistant>"},
        {"use_tokenizer_template": True},
        {"prompt": "<__media__>see"},
    ]


def test_bad_lines_are_answered_too(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_LONGEST_LINE", 100)
    assert answers(
        b"{bad",
        b"",
        b"\xff\xfe",
        [],
        {"prompt": "x" * 500},
        {"model": "m"},
        {"endpoint": "images", "request": {}},
        {"template": "nosuch", "data": {}},
        {"template": "chat", "data": {"Nothing": 1}},
        CHAT,
    ) == [
        {"error": "not valid JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))"},
        {"error": "the line is empty"},
        {"error": "not UTF-8 text: see byte 0"},
        {"error": "expected a JSON object"},
        {"error": "the line is longer than 0 MB"},
        {"error": "a request has messages, prompt or instruction"},
        {"error": "endpoint: must be chat, completion or edit"},
        {"error": "template: must be one of chat, chat_message, completion, edit, function, multimodal"},
        {"error": "data.Nothing: the template chat gets no such field"},
        {"prompt": "<user> hi <assistant>"},
    ]


def test_a_refused_template_is_an_error_in_every_line_that_needs_it(answers: Answers) -> None:
    assert answers(CHAT, {"prompt": "x"}, config='template: {chat: "\\n{{now}}", completion: "{{.Input}}!"}') == [
        {"error": "template chat, line 2: the function now is not offered"},
        {"prompt": "x!"},
    ]
    assert answers(CHAT, config="template: {chat: [1]}") == [{"error": "template.chat: must be text, got a list"}]


def test_a_person_is_told_what_would_be_refused(home: Path) -> None:
    (home / "model.yaml").write_text(
        "system_prompt: S\ntemplate: {chat: '{{now}}', edit: chatml, completion: '{{.Input}}'}\n"
    )
    arguments = [sys.executable, "-m", "corral", "models", "prompt", str(home / "model.yaml")]
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        done = subprocess.run(arguments, input=b'{"prompt": "x"}\n', stdout=subprocess.PIPE, stderr=theirs, check=True)
        os.close(theirs)
        said = terminal.read(4096).decode()
    assert done.stdout == b'{"prompt": "x"}\n'
    for words in ("the function now is not offered", "'chatml' is the name of a file", "system_prompt has no effect"):
        assert words in said


@pytest.mark.parametrize(
    "config",
    [
        pytest.param("- template: {chat: '{{.Input}}!'}", id="a list of one"),
        pytest.param("config_file: |\n  template:\n    chat: '{{.Input}}!'\n", id="a base definition"),
        pytest.param(
            "config_file: 'template: {chat: c}'\nprompt_templates: [{name: c, content: '{{.Input}}!'}]\n",
            id="a base definition with named templates",
        ),
    ],
)
def test_other_files_with_one_model_are_taken(answers: Answers, config: str) -> None:
    assert answers(CHAT, config=config) == [{"prompt": "hi!"}]


def test_without_a_template_the_messages_are_the_prompt(answers: Answers) -> None:
    assert answers(CHAT, config="# nothing yet\n") == [{"prompt": "hi"}]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"a: 1\n\tb: 2\n", "is not YAML: found a tab character that violates indentation in line 2"),
        (b"template:\n  chat: a\n  chat: b\n", "has the key 'chat' twice, again in line 3"),
        (b"- {a: 1}\n- {b: 1}\n", "holds 2 models; write the one to try into a file of its own"),
        (b"text", "must be a mapping of keys to values, as a model's file is"),
        (b"a: \xff", "is not UTF-8 text: see byte 3"),
        (b"config_file: |\n  a: 1\n  a: 2\n", "config_file: has the key 'a' twice, again in line 3"),
        (b"#" * 5_000_000, "is larger than 4 MB: this is no model's configuration"),
    ],
)
def test_a_file_that_cannot_be_used_is_told(corral: Corral, home: Path, content: bytes | None, problem: str) -> None:
    if content is not None:
        (home / "model.yaml").write_bytes(content)
    outcome = corral("models", "prompt", str(home / "model.yaml"))
    assert (outcome.code, outcome.out) == (64, "")
    assert outcome.err == f"error: {home / 'model.yaml'}: {problem}\n"


def test_every_line_is_answered_before_the_next_is_read(home: Path) -> None:
    """Another program may ask, and go on by what it hears."""
    (home / "model.yaml").write_text(CONFIG)
    arguments = [sys.executable, "-m", "corral", "models", "prompt", str(home / "model.yaml")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for word in ("one", "two"):
            process.stdin.write(json.dumps({"prompt": word}).encode() + b"\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline()) == {"prompt": f"complete: {word}"}
        process.stdin.close()
        assert process.wait() == 0


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line) | st.text(max_size=20), max_size=5))
def test_there_are_as_many_lines_out_as_in(answers: Answers, lines: list[bytes | str]) -> None:
    texts = [line if isinstance(line, bytes) else json.dumps({"prompt": line}).encode() for line in lines]
    given_back = answers(*texts)
    assert len(given_back) == len(lines)
    for line, answer in zip(lines, given_back, strict=True):
        if isinstance(line, str):
            assert answer == {"prompt": f"complete: {line}"}
