"""What Corral would make of a gallery of models: each problem with its entry, line, field and sentence."""

import time

import pytest

from corral.base.yaml_values import as_value
from corral.galleries.gallery import GallerySource, read_entries
from corral.galleries.index_document import read_index
from corral.galleries.model_check import (
    CheckKind,
    CheckRules,
    Definitions,
    GalleryCheck,
    ProblemSeverity,
    check_gallery,
)
from corral.galleries.model_entries import read_definition, read_model_entry

SHA = "a" * 64
FILE = f"files: [{{filename: w.gguf, uri: 'hf://o/r/w.gguf', sha256: {SHA}}}]"
BASE = read_definition(
    b"config_file: |\n  backend: llama-cpp\n  contxt_size: 1\n  template: {chat: '{{ odd }}'}\n"
    b"  parameters: {model: w}\n"
)
RULES = CheckRules(
    template_problem=lambda text: "odd is unknown" if "odd" in text else None,
    uri_problem=lambda uri: None if uri.startswith("hf://") else "the scheme is unknown",
    backends=frozenset({"llama-cpp", "kokoro"}),
)


def checked(text: str, definitions: Definitions | None = None, rules: CheckRules = RULES) -> GalleryCheck:
    items = read_index(text.encode(), as_value)
    content = read_entries(items, GallerySource(name="g", url="u"), read_model_entry, noun="model")
    return check_gallery(content, definitions or {}, rules)


@pytest.mark.parametrize(
    ("entry", "kind", "severity", "line", "field", "sentence"),
    [
        ("name: [x]", CheckKind.ENTRY, ProblemSeverity.ERROR, 1, "", "name: must be text, got a list"),
        (
            f"name: x\n  url: nowhere\n  {FILE}",
            CheckKind.BASE,
            ProblemSeverity.ERROR,
            2,
            "url",
            "its base nowhere cannot be used: was not fetched",
        ),
        (
            f"name: x\n  overrides: {{name: ''}}\n  {FILE}",
            CheckKind.ENTRY,
            ProblemSeverity.ERROR,
            2,
            "overrides.name",
            "overrides.name: is missing",
        ),
        (
            f"name: x\n  {FILE}\n  overrides:\n    backend: kokoro\n    context_size: big",
            CheckKind.VALUE,
            ProblemSeverity.ERROR,
            5,
            "context_size",
            'context_size: must be a whole number, got text ("big")',
        ),
        (
            f"name: x\n  {FILE}\n  overrides:\n    backend: kokoro\n    template:\n      chat: '{{{{odd}}}}'",
            CheckKind.TEMPLATE,
            ProblemSeverity.ERROR,
            6,
            "template.chat",
            "template.chat: odd is unknown",
        ),
        (
            f"name: x\n  overrides: {{backend: kokoro}}\n  files:\n    - {{filename: a, uri: ftp://a, sha256: {SHA}}}",
            CheckKind.SCHEME,
            ProblemSeverity.ERROR,
            4,
            "files",
            "a cannot be fetched: the scheme is unknown",
        ),
        (
            "name: x\n  overrides: {backend: kokoro}\n  files:\n    - {filename: a, uri: hf://a}",
            CheckKind.NO_HASH,
            ProblemSeverity.WARNING,
            4,
            "files",
            "a has no sha256: what its server gives is taken for it",
        ),
        (
            f"name: x\n  {FILE}\n  overrides:\n    backend: kokorro\n    parameters: {{model: w}}",
            CheckKind.BACKEND,
            ProblemSeverity.WARNING,
            4,
            "backend",
            "the backend 'kokorro' is in no gallery of backends; did you mean kokoro?",
        ),
        (
            f"name: x\n  files: [{{filename: w, uri: 'hf://o/r/w', sha256: {SHA}}}]\n"
            "  overrides: {parameters: {model: w}}",
            CheckKind.NO_BACKEND,
            ProblemSeverity.ERROR,
            1,
            "backend",
            "names no backend: nothing can serve it",
        ),
        (
            f"name: x\n  {FILE}\n  overrides: {{parameters: {{model: w.gguf}}}}",
            CheckKind.NO_BACKEND,
            ProblemSeverity.NOTE,
            1,
            "backend",
            "names no backend: llama-cpp is taken for its GGUF file",
        ),
        (
            f"name: x\n  {FILE}\n  overrides: {{backend: llama-cpp}}",
            CheckKind.NO_MODEL,
            ProblemSeverity.ERROR,
            1,
            "parameters.model",
            "parameters.model is missing: nothing says which file the weights are",
        ),
        (
            "name: x\n  overrides: {backend: kokoro}",
            CheckKind.NO_FILES,
            ProblemSeverity.NOTE,
            1,
            "files",
            "names no files: the backend has to fetch its weights itself",
        ),
        (
            "name: x\n  overrides: {backend: kokoro, parameters: {model: a/b}}",
            CheckKind.NO_FILES,
            ProblemSeverity.NOTE,
            1,
            "files",
            "names no files: the backend has to fetch 'a/b' itself",
        ),
        (
            f"name: x\n  {FILE}\n  overrides: {{backend: kokoro}}\n  parameters: {{model: a}}",
            CheckKind.KEY,
            ProblemSeverity.WARNING,
            4,
            "parameters",
            "unknown key 'parameters' of an entry, which has no effect; settings of the model belong below overrides",
        ),
        (
            f"name: x\n  {FILE}\n  overrides:\n    backend: kokoro\n    known_usecases: [caht]",
            CheckKind.WORD,
            ProblemSeverity.WARNING,
            5,
            "known_usecases[0]",
            "unknown use 'caht', which has no effect; did you mean chat?",
        ),
        (
            f"name: x\n  {FILE}\n  overrides: {{backend: kokoro}}\n  variants: [{{model: goood}}]",
            CheckKind.VARIANT,
            ProblemSeverity.WARNING,
            4,
            "variants",
            "the variant 'goood' is no entry; did you mean good?",
        ),
        (
            f"name: x\n  {FILE}\n  overrides: {{backend: kokoro}}\n  variants: [{{model: X}}]",
            CheckKind.VARIANT,
            ProblemSeverity.WARNING,
            4,
            "variants",
            "it is a variant of itself",
        ),
        (
            f"name: x\n  {FILE}\n  overrides: {{backend: kokoro}}\n  variants: [{{model: parent}}]",
            CheckKind.VARIANT,
            ProblemSeverity.WARNING,
            4,
            "variants",
            "the variant 'parent' has variants itself",
        ),
    ],
)
def test_a_problem_is_told_with_its_place(
    entry: str, kind: CheckKind, severity: ProblemSeverity, line: int, field: str, sentence: str
) -> None:
    good = f"- {{name: good, overrides: {{backend: kokoro}}, {FILE}}}"
    parent = f"- {{name: parent, overrides: {{backend: kokoro}}, variants: [{{model: good}}], {FILE}}}"
    result = checked(f"- {entry}\n{good}\n{parent}\n")
    (problem,) = result.problems
    assert (problem.severity, problem.kind, problem.line, problem.field, problem.sentence, problem.base) == (
        severity,
        kind,
        line,
        field,
        sentence,
        "",
    )
    summary = result.summary
    assert (summary.entries, summary.refused) == (3, int(severity is ProblemSeverity.ERROR))
    assert summary.readable == 3 - summary.refused
    assert summary.warned == int(severity is ProblemSeverity.WARNING)
    assert summary.kinds == {kind: 1}


def test_an_alias_needs_neither_a_backend_nor_files() -> None:
    assert checked("- {name: x, overrides: {alias: good}}\n").problems == ()
    (problem,) = checked("- {name: x, overrides: {alias: good, backend: kokoro}}\n").problems
    assert problem.sentence == "alias: is a mere redirect: it has neither a backend nor parameters"


def test_nonsense_takes_little_time() -> None:
    names = "".join(
        f"- {{name: m{n}, overrides: {{backend: b{n}, k{n}: 1}}, variants: [{{model: v{n}}}]}}\n" for n in range(5000)
    )
    keys = ", ".join(f"key{n}: 1" for n in range(20_000))
    words = ", ".join(f"word{n}" for n in range(20_000))
    overrides = f"{{function: {{{keys}}}, options: [{words}], known_usecases: [{words}]}}"
    text = f"{names}- {{name: x, overrides: {overrides}, {keys}}}\n"
    began = time.process_time()
    result = checked(text, rules=CheckRules(backends=frozenset(f"backend-{n}" for n in range(1000))))
    assert result.summary.entries == 5001
    assert time.process_time() - began < 30


def test_problems_of_a_base_name_it_and_its_lines() -> None:
    result = checked(f"- {{name: x, url: base, {FILE}}}\n", {"base": BASE})
    assert [(problem.kind, problem.base, problem.line) for problem in result.problems] == [
        (CheckKind.KEY, "base", 3),
        (CheckKind.TEMPLATE, "base", 4),
    ]


def test_a_base_that_cannot_be_read_is_told_by_its_reason() -> None:
    (problem,) = checked("- {name: x, url: base}\n", {"base": "answers 404"}).problems
    assert problem.sentence == "its base base cannot be used: answers 404"


def test_duplicates_are_refused() -> None:
    entry = f"- {{name: x, overrides: {{backend: kokoro}}, {FILE}}}\n"
    result = checked(entry + entry)
    (problem,) = result.problems
    assert (problem.line, problem.entry) == (2, "x")
    assert "of this name is there already" in problem.sentence
    assert (result.summary.entries, result.summary.refused, result.summary.readable) == (2, 1, 1)


def test_without_a_list_of_backends_none_is_missed() -> None:
    entry = f"- {{name: x, overrides: {{backend: anything, parameters: {{model: w}}}}, {FILE}}}\n"
    assert checked(entry, rules=CheckRules()).problems == ()


def test_thousands_of_entries_take_linear_time() -> None:
    text = "- &base {name: base, url: base, overrides: {backend: kokoro, parameters: {model: w}}, " + FILE + "}\n"
    text += "".join(f"- {{<<: *base, name: m{number}, variants: [{{model: base}}]}}\n" for number in range(5000))
    began = time.process_time()
    result = checked(text, {"base": BASE})
    assert result.summary.entries == 5001
    assert time.process_time() - began < 20
