"""`corral gallery check`: what authors of galleries of models are told."""

import json
from pathlib import Path

import pytest

from .conftest import Corral

SHA = "a" * 64
INDEX = f"""\
- name: good
  url: github:someone/models/base.yaml@main
  overrides: {{parameters: {{model: good.gguf}}}}
  files:
    - {{filename: good.gguf, uri: "hf://owner/name/good.gguf", sha256: {SHA}}}
- name: worse
  url: github:someone/models/base.yaml@main
  overrides:
    contxt_size: 1
    backend: wisper
    parameters: {{model: worse.gguf}}
  files:
    - {{filename: worse.gguf, uri: "https://example.org/worse.gguf"}}
- name: "broken
- name: bad
  overrides:
    {{backend: whisper, f16: perhaps, parameters: {{model: bad.bin}}, template: {{chat: "a\\n{{{{now}}}}"}}}}
  files:
    - {{filename: bad.bin, uri: "ftp://example.org/bad.bin", sha256: {SHA}}}
"""
BACKENDS = "- {name: cpu-whisper, alias: whisper, uri: a}\n- {name: cpu-llama-cpp, alias: llama-cpp, uri: b}\n"


@pytest.fixture
def index(home: Path) -> Path:
    (home / "base.yaml").write_text("config_file: |\n  backend: llama\n  parameters: {voice: x}\n")
    (home / "backends.yaml").write_text(BACKENDS)
    (home / "index.yaml").write_text(INDEX)
    return home / "index.yaml"


def test_every_problem_is_shown_with_its_line(corral: Corral, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    outcome = corral("gallery", "check", str(index), "--backends", str(index.parent / "backends.yaml"))
    assert outcome.code == 1
    schemes = "hf://, ollama://, oci://, https://, http://, github:, file://, a path, or a name"
    assert outcome.out.replace(schemes, "SCHEMES") == (
        """\
Entry cannot be read: 1
       ENTRY  LINE  PROBLEM
error         14    is not YAML: found unexpected end of stream in line 15

Value of a wrong type: 1
       ENTRY  LINE  PROBLEM
error  bad    17    f16: must be true or false, got text ("perhaps")

Template not supported: 1
       ENTRY  LINE  PROBLEM
error  bad    17    template.chat: line 2: the function now is not offered

Uri that is not fetched: 1
       ENTRY  LINE  PROBLEM
error  bad    19    bad.bin cannot be fetched: the scheme ftp:// is unknown; there are SCHEMES

Backend that nobody offers: 1
         ENTRY  LINE  PROBLEM
warning  worse  10    the backend 'wisper' is in no gallery of backends; did you mean whisper?

Key that nobody knows: 3
         ENTRY            LINE         PROBLEM
warning  good and 1 more  base.yaml:3  unknown key 'parameters.voice', which has no effect; did you mean tts.voice?
warning  worse            9            unknown key 'contxt_size', which has no effect; did you mean context_size?

File without a hash: 1
         ENTRY  LINE  PROBLEM
warning  worse  13    worse.gguf has no sha256: what its server gives is taken for it

4 entries: 2 can be installed, 2 of them with warnings; 2 are refused.
"""
    )


def test_json_has_all_of_it(corral: Corral, index: Path) -> None:
    outcome = corral("gallery", "check", str(index), "--backends", str(index.parent / "backends.yaml"), "--json")
    assert outcome.code == 1
    answer = json.loads(outcome.out)
    assert answer["summary"] == {
        "entries": 4,
        "readable": 2,
        "refused": 2,
        "warned": 2,
        "kinds": {
            "entry cannot be read": 1,
            "value of a wrong type": 1,
            "template not supported": 1,
            "uri that is not fetched": 1,
            "backend that nobody offers": 1,
            "key that nobody knows": 3,
            "file without a hash": 1,
        },
    }
    assert answer["problems"][1] == {
        "severity": "warning",
        "kind": "key that nobody knows",
        "entry": "good",
        "line": 3,
        "field": "parameters.voice",
        "sentence": "unknown key 'parameters.voice', which has no effect; did you mean tts.voice?",
        "base": "github:someone/models/base.yaml@main",
    }


def test_a_gallery_without_faults_ends_well(corral: Corral, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_BACKEND_GALLERIES", json.dumps([{"name": "gone", "url": (home / "gone").as_uri()}]))
    (home / "index.yaml").write_text("- {name: x, overrides: {backend: any, parameters: {model: a/b}}}\n")
    outcome = corral("gallery", "check", str(home / "index.yaml"))
    assert outcome.code == 0
    assert "1 entries: 1 can be installed, 0 of them with warnings; 0 are refused." in outcome.out
    assert "Backends were not compared, because the gallery gone cannot be read: " in outcome.out


def test_long_lists_are_cut(corral: Corral, home: Path) -> None:
    entries = "".join(f"- {{name: m{n}, overrides: {{backend: kokoro, wrong-{n}: 1}}}}\n" for n in range(20))
    (home / "index.yaml").write_text(entries)
    (home / "backends.yaml").write_text("- {name: kokoro, uri: a}\n")
    arguments = ("gallery", "check", str(home / "index.yaml"), "--backends", str(home / "backends.yaml"))
    assert "… and 10 more; --all shows them." in corral(*arguments).out
    assert "more; --all" not in corral(*arguments, "--all").out


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file or directory"),
        ("text", "is not a list of models"),
        ("- [", "is not YAML"),
        ("- {name: x}\n", "holds no model that can be used: 'x' in line 1: has no url"),
    ],
)
def test_what_is_no_gallery_is_told(corral: Corral, home: Path, content: str | None, problem: str) -> None:
    if content is not None:
        (home / "index.yaml").write_text(content)
    outcome = corral("gallery", "check", str(home / "index.yaml"))
    assert outcome.code != 0
    assert problem in outcome.err
    assert outcome.err.count("\n") == 1


def test_the_gallery_that_ships_with_corral_can_be_checked(corral: Corral, home: Path) -> None:
    (home / "backends.yaml").write_text(BACKENDS)
    outcome = corral("gallery", "check", "corral:builtin", "--backends", str(home / "backends.yaml"))
    assert outcome.code == 0
    assert "0 are refused." in outcome.out
