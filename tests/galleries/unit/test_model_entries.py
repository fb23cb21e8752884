"""Entries of galleries of models: what each ends up with, and why some cannot be used."""

import contextlib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from corral.base.errors import InvalidInput
from corral.base.yaml_values import as_value
from corral.galleries.gallery import GallerySource, read_entries
from corral.galleries.index_document import read_index
from corral.galleries.model_entries import (
    NO_BASE,
    GalleryModel,
    ModelContent,
    ModelFile,
    key_line,
    merged,
    plan_model,
    read_definition,
    read_model_entry,
)

SHA = "a" * 64
BASE = read_definition(
    b"""\
name: base
license: mit
config_file: |
  backend: llama-cpp
  context_size: 4096
  stopwords: [a, b]
  template:
    chat: plain
    completion: "{{.Input}}"
files:
  - {filename: shared.bin, uri: "https://a.org/shared.bin"}
prompt_templates:
  - {name: plain, content: "{{.Input}}!"}
"""
)


def gallery(text: str) -> ModelContent:
    items = read_index(text.encode(), as_value)
    return read_entries(items, GallerySource(name="g", url="u"), read_model_entry, noun="model")


def entry(text: str) -> GalleryModel:
    content = gallery(text)
    assert content.skipped == ()
    return content.entries[-1]


def test_overrides_are_laid_over_the_base_key_by_key() -> None:
    plan = plan_model(
        entry("- {name: m, url: u, overrides: {stopwords: [c], template: {completion: x}, parameters: {model: w}}}"),
        BASE,
    )
    assert plan.name == "m"
    assert plan.config == {
        "name": "m",
        "backend": "llama-cpp",
        "context_size": 4096,
        "stopwords": ["c"],
        "template": {"chat": "{{.Input}}!", "completion": "x"},
        "parameters": {"model": "w"},
    }
    assert (plan.backend, plan.license) == ("llama-cpp", "mit")
    assert BASE.config["stopwords"] == ["a", "b"]


def test_an_override_name_beats_the_entry_s_and_what_somebody_asks_for_beats_both() -> None:
    named = entry("- {name: m, overrides: {name: other, backend: x}}")
    assert plan_model(named).name == "other"
    assert plan_model(named, name="mine").config["name"] == "mine"
    assert plan_model(named, name="org/mine").file_name == "org__mine.yaml"


def test_an_inline_configuration_counts_only_without_a_url() -> None:
    text = "- {name: m, config_file: {backend: inline, f16: yes}, overrides: {threads: 2}}"
    assert plan_model(entry(text)).config == {"name": "m", "backend": "inline", "f16": True, "threads": 2}
    both = entry("- {name: m, url: u, config_file: {backend: inline}}")
    assert plan_model(both, BASE).backend == "llama-cpp"


def test_a_configuration_may_be_a_text() -> None:
    assert plan_model(entry("- name: m\n  config_file: |\n    backend: b\n")).backend == "b"


def test_files_come_from_the_base_the_entry_and_the_configuration() -> None:
    text = f"""\
- name: m
  url: u
  files:
    - {{filename: a/b.gguf, uri: "hf://o/r/b.gguf", sha256: {SHA.upper()}}}
    - {{filename: shared.bin, uri: "https://b.org/other"}}
  overrides:
    download_files:
      - {{filename: c, uri: "https://b.org/c"}}
"""
    plan = plan_model(entry(text), BASE)
    assert [(file.filename, file.uri, file.sha256) for file in plan.files] == [
        ("shared.bin", "https://b.org/other", ""),
        ("a/b.gguf", "hf://o/r/b.gguf", SHA),
        ("c", "https://b.org/c", ""),
    ]
    assert [file.line for file in plan.files] == [5, 4, 8]


def test_a_gguf_file_without_a_backend_gets_one() -> None:
    plan = plan_model(entry("- {name: m, files: [{filename: w.GGUF, uri: u}]}"))
    assert (plan.backend, plan.is_backend_assumed) == ("llama-cpp", True)
    assert plan_model(entry("- {name: m, files: [{filename: w.bin, uri: u}]}")).backend == ""


def test_anchors_and_merges_work() -> None:
    text = """\
- &base
  name: m
  tags: [a]
  overrides: &over {backend: b, parameters: {model: x}}
- !!merge <<: *base
  name: second
- <<: *base
  name: third
  overrides:
    <<: *over
    f16: true
"""
    second, third = gallery(text).entries[1:]
    assert (second.tags, plan_model(second).backend) == (("a",), "b")
    assert plan_model(third).config == {"name": "third", "backend": "b", "parameters": {"model": "x"}, "f16": True}


def test_all_that_is_shown_is_read() -> None:
    read = entry(
        "- {name: m, url: u, description: d, license: l, icon: i, size: 1GB, urls: [a], tags: [t, 4, 1.5], "
        "variants: [{model: x}, {model: x}], backend: b, last_checked: 2026-01-01, extra: 1}"
    )
    assert (read.description, read.license, read.icon, read.size) == ("d", "l", "i", "1GB")
    assert (read.urls, read.tags, read.variants, read.backend) == (("a",), ("t", "4", "1.5"), ("x",), "b")
    assert (read.unknown, read.lines["extra"], read.id) == (("extra",), 1, "g@m")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{url: u}", "name: is missing"),
        ("{name: x}", "has no url, no config_file, no overrides and no files"),
        ("{name: 'a#b', url: u}", "name: must be one line without #"),
        ("{name: '..', url: u}", "name: cannot be the name of a file"),
        (f"{{name: {'x' * 300}, url: u}}", "name: is longer than 200 bytes"),
        ("{name: x, overrides: [a]}", "overrides: must be a mapping, got a list"),
        ("{name: x, config_file: 'a: [', url: ''}", "config_file: is not YAML"),
        ("{name: x, config_file: 'text'}", "config_file: must be a mapping, got text"),
        ("{name: x, files: {a: b}}", "files: must be a list"),
        ("{name: x, files: [a]}", "files[0]: must be a mapping"),
        ("{name: x, files: [{filename: a, uri: b}, {filename: ../a, uri: b}]}", "files[1].filename: must be below"),
        ("{name: x, files: [{filename: /a, uri: b}]}", "files[0].filename: must be below"),
        ("{name: x, files: [{filename: .artifacts/a, uri: b}]}", "files[0].filename: must not be hidden"),
        ("{name: x, files: [{filename: a}]}", "files[0].uri: is missing"),
        ("{name: x, files: [{filename: a, uri: b, sha256: abc}]}", "files[0].sha256: must be 64 hexadecimal digits"),
        ("{name: x, url: u, variants: [a]}", "variants: must be a list of mappings"),
        ("{name: x, url: u, variants: [{}]}", "variants: must name a model each"),
        ("{name: x, url: u, tags: {a: b}}", "tags: must be a list of texts"),
        ("just text", "must be a mapping, got text"),
        ("{name: x, url: u, url: v}", "has the key 'url' twice, again in line 1"),
    ],
)
def test_an_entry_that_cannot_be_used_is_told_and_hurts_no_other(text: str, problem: str) -> None:
    content = gallery(f"- {text}\n- {{name: good, url: u}}\n")
    assert [good.name for good in content.entries] == ["good"]
    (skipped,) = content.skipped
    assert skipped.problem.startswith(problem)
    assert skipped.line == 1


def test_of_two_entries_with_one_name_the_first_counts() -> None:
    content = gallery("- {name: a, url: u}\n- {name: A, url: v}\n")
    assert [found.url for found in content.entries] == ["u"]
    assert [(skipped.line, skipped.name) for skipped in content.skipped] == [(2, "A")]


@pytest.mark.parametrize("name", ["''", "[a]", "'a#b'"])
def test_a_name_that_overrides_spoil_is_told(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"overrides\.name"):
        plan_model(entry(f"- {{name: m, overrides: {{name: {name}}}}}"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff", "is not UTF-8 text"),
        (b"- a", "must be a mapping, got a list"),
        (b"config_file: |\n  a: 1\n  a: 2\n", "config_file: has the key 'a' twice, again in line 3"),
        (b"config_file: |\n  a: [\n", "config_file: is not YAML"),
        (b"files: [{filename: a}]", "files[0].uri: is missing"),
        (b"prompt_templates: [a]", "prompt_templates: must be a list of mappings"),
    ],
)
def test_a_base_that_cannot_be_used_is_told(content: bytes, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_definition(content)
    assert caught.value.message.startswith(problem)


def test_an_empty_base_adds_nothing() -> None:
    assert read_definition(b"---\n# nothing\n") == NO_BASE
    assert read_definition(b"name: virtual\n") == NO_BASE


def test_lines_of_a_base_are_those_of_its_file() -> None:
    assert key_line(BASE.config, ("template", "chat")) == 8
    assert key_line(BASE.config, ("template", "nowhere")) == 7
    assert key_line(BASE.config, ("nowhere",)) == 0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from("abc"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
CONFIGS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


@given(CONFIGS, CONFIGS)
def test_merging_keeps_all_of_what_is_laid_over_and_is_stable(base: dict[str, object], over: dict[str, object]) -> None:
    once = merged(base, over)
    assert set(once) == set(base) | set(over)
    assert merged(once, over) == once
    assert merged({}, base) == base
    assert merged(base, {}) == base


KEYS = st.sampled_from(
    ["name", "url", "overrides", "files", "variants", "tags", "config_file", "filename", "uri", "model"]
)
ODD = st.lists(
    st.dictionaries(KEYS, VALUES | st.lists(st.dictionaries(KEYS, VALUES, max_size=3), max_size=2)), max_size=4
)


@given(ODD)
def test_no_entry_is_too_odd(document: list[object]) -> None:
    with contextlib.suppress(InvalidInput):
        content = gallery(yaml.safe_dump(document))
        assert len(content.entries) + len(content.skipped) == len(document)
        for found in content.entries:
            with contextlib.suppress(InvalidInput):
                assert all(isinstance(file, ModelFile) for file in plan_model(found).files)
