"""What Corral would make of each entry of a gallery of models: for its authors, before anybody installs one. Pure."""

import difflib
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from corral.base.config_fields import value_at
from corral.base.errors import InvalidInput
from corral.galleries.model_entries import (
    ENTRY_KEYS,
    NO_BASE,
    BaseDefinition,
    GalleryModel,
    ModelContent,
    ModelFile,
    ModelPlan,
    key_line,
    plan_model,
)
from corral.galleries.model_key_checks import ConfigPath, shown_path, unknown_keys, unknown_words, wrong_values
from corral.galleries.model_keys import OWN_WEIGHTS

_TEMPLATE: Final = "template"
_NO_TEMPLATES: Final = frozenset({"use_tokenizer_template", "join_chat_messages_by_character", "reply_prefix"})
"""Keys below `template` that hold no template."""
_NEAR: Final = 0.6
_MOST_HINTS: Final = 100
_MOST_KEYS: Final = 20
_SHOWN: Final = 80


class ProblemSeverity(StrEnum):
    ERROR = "error"
    """The entry is refused."""
    WARNING = "warning"
    """The entry can be installed, but does not do all that its author meant."""
    NOTE = "note"


class CheckKind(StrEnum):
    """What is wrong, in a word for tables; the order is that of the summary."""

    ENTRY = "entry cannot be read"
    BASE = "base definition cannot be read"
    VALUE = "value of a wrong type"
    TEMPLATE = "template not supported"
    SCHEME = "uri that is not fetched"
    BACKEND = "backend that nobody offers"
    VARIANT = "variant that leads nowhere"
    KEY = "key that nobody knows"
    WORD = "word that nobody knows"
    NO_HASH = "file without a hash"
    NO_BACKEND = "no backend named"
    NO_MODEL = "no weights named"
    NO_FILES = "no files named"


class CheckProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with an entry."""

    severity: ProblemSeverity
    kind: CheckKind
    entry: str
    line: int
    """In the index, or in the base definition if `base` names one; 0 if unknown."""
    field: str
    sentence: str
    base: str = ""


class CheckSummary(msgspec.Struct, frozen=True, kw_only=True):
    entries: int
    readable: int
    refused: int
    warned: int
    """Entries that are readable, with warnings."""
    kinds: Mapping[CheckKind, int]
    """Number of problems of each kind."""


class GalleryCheck(msgspec.Struct, frozen=True, kw_only=True):
    problems: tuple[CheckProblem, ...]
    summary: CheckSummary


def _no_problem(_: str) -> str | None:
    return None


class CheckRules(msgspec.Struct, frozen=True, kw_only=True):
    """What entries are measured by, as far as others know it."""

    template_problem: Callable[[str], str | None] = _no_problem
    """Why a template cannot be used; None if it can."""
    uri_problem: Callable[[str], str | None] = _no_problem
    """Why a uri cannot be fetched; None if it can."""
    backends: Collection[str] = frozenset()
    """Names of all backends, in lower case; empty if unknown."""


Definitions = Mapping[str, BaseDefinition | str]
"""What each url of an entry leads to: a definition, or why there is none."""


def check_gallery(content: ModelContent, definitions: Definitions, rules: CheckRules) -> GalleryCheck:
    """Check all entries of a gallery. A url that `definitions` does not have counts as not readable."""
    problems = [
        CheckProblem(
            severity=ProblemSeverity.ERROR,
            kind=CheckKind.ENTRY,
            entry=skipped.name,
            line=skipped.line,
            field="",
            sentence=skipped.problem,
        )
        for skipped in content.skipped
    ]
    checker = _Checker(content, definitions, rules)
    refused, warned = len(content.skipped), 0
    for entry in content.entries:
        entry_problems = list(checker.check(entry))
        severities = {problem.severity for problem in entry_problems}
        refused += ProblemSeverity.ERROR in severities
        warned += ProblemSeverity.WARNING in severities and ProblemSeverity.ERROR not in severities
        problems += entry_problems
    total = len(content.entries) + len(content.skipped)
    counts = Counter(problem.kind for problem in problems)
    summary = CheckSummary(
        entries=total,
        readable=total - refused,
        refused=refused,
        warned=warned,
        kinds={kind: counts[kind] for kind in CheckKind if counts[kind]},
    )
    return GalleryCheck(problems=tuple(problems), summary=summary)


class _Checker:
    def __init__(self, content: ModelContent, definitions: Definitions, rules: CheckRules) -> None:
        self._names = {entry.name.lower(): entry for entry in content.entries}
        self._definitions = definitions
        self._rules = rules
        self._templates: dict[str, str | None] = {}
        self._hints: dict[tuple[CheckKind, str], str] = {}

    def check(self, entry: GalleryModel) -> Iterator[CheckProblem]:
        base = self._definitions.get(entry.url, "was not fetched") if entry.url else NO_BASE
        yield from self._entry_keys(entry)
        yield from self._variants(entry)
        if isinstance(base, str):
            sentence = f"its base {entry.url} cannot be used: {base}"
            yield _problem(entry, ProblemSeverity.ERROR, CheckKind.BASE, ("url",), sentence)
            return
        try:
            plan = plan_model(entry, base)
        except InvalidInput as error:
            yield _problem(entry, ProblemSeverity.ERROR, CheckKind.ENTRY, (error.field,), error.message)
            return
        place = _CheckedPlace(entry, base)
        yield from self._config(place, plan)
        if plan.config.get("alias"):
            if plan.backend or plan.config.get("parameters"):
                sentence = "alias: is a mere redirect: it has neither a backend nor parameters"
                yield place.problem(ProblemSeverity.ERROR, CheckKind.VALUE, ("alias",), sentence)
            return
        yield from self._files(place, plan)
        yield from self._backend(place, plan)

    def _entry_keys(self, entry: GalleryModel) -> Iterator[CheckProblem]:
        for key in entry.unknown[:_MOST_KEYS]:
            is_setting = key == "parameters"
            hint = "; settings of the model belong below overrides" if is_setting else _hint(key.lower(), ENTRY_KEYS)
            sentence = f"unknown key {key[:_SHOWN]!r} of an entry, which has no effect{hint}"
            yield _problem(entry, ProblemSeverity.WARNING, CheckKind.KEY, (key,), sentence)

    def _variants(self, entry: GalleryModel) -> Iterator[CheckProblem]:
        for name in entry.variants:
            variant = self._names.get(name.lower())
            problem = ""
            if variant is None:
                hint = self._near(CheckKind.VARIANT, name.lower(), self._names)
                problem = f"the variant {name[:_SHOWN]!r} is no entry{hint}"
            elif variant is entry:
                problem = "it is a variant of itself"
            elif variant.variants:
                problem = f"the variant {name[:_SHOWN]!r} has variants itself"
            if problem:
                yield _problem(entry, ProblemSeverity.WARNING, CheckKind.VARIANT, ("variants",), problem)

    def _config(self, place: "_CheckedPlace", plan: ModelPlan) -> Iterator[CheckProblem]:
        for wrong in wrong_values(plan.config):
            yield place.problem(ProblemSeverity.ERROR, CheckKind.VALUE, wrong.path, wrong.sentence)
        for key in unknown_keys(plan.config):
            yield place.problem(ProblemSeverity.WARNING, CheckKind.KEY, key.path, key.sentence)
        for path, sentence in unknown_words(plan.config):
            yield place.problem(ProblemSeverity.WARNING, CheckKind.WORD, path, sentence)
        templates = plan.config.get(_TEMPLATE)
        for name, text in templates.items() if isinstance(templates, Mapping) else ():
            if isinstance(text, str) and name not in _NO_TEMPLATES and (problem := self._template_problem(text)):
                sentence = f"template.{name}: {problem}"
                yield place.problem(ProblemSeverity.ERROR, CheckKind.TEMPLATE, (_TEMPLATE, name), sentence)

    def _template_problem(self, text: str) -> str | None:
        if text not in self._templates:
            self._templates[text] = self._rules.template_problem(text)
        return self._templates[text]

    def _files(self, place: "_CheckedPlace", plan: ModelPlan) -> Iterator[CheckProblem]:
        for file in plan.files:
            if problem := self._rules.uri_problem(file.uri):
                sentence = f"{file.filename} cannot be fetched: {problem}"
                yield place.file_problem(ProblemSeverity.ERROR, CheckKind.SCHEME, file, sentence)
            if not file.sha256:
                sentence = f"{file.filename} has no sha256: what its server gives is taken for it"
                yield place.file_problem(ProblemSeverity.WARNING, CheckKind.NO_HASH, file, sentence)
        model = value_at(plan.config, "parameters.model")
        if not model and plan.backend.lower() not in OWN_WEIGHTS:
            sentence = "parameters.model is missing: nothing says which file the weights are"
            yield place.problem(ProblemSeverity.ERROR, CheckKind.NO_MODEL, ("parameters", "model"), sentence)
        elif not plan.files:
            missing_file = repr(model) if model else "its weights"
            sentence = f"names no files: the backend has to fetch {missing_file} itself"
            yield place.problem(ProblemSeverity.NOTE, CheckKind.NO_FILES, ("files",), sentence)

    def _backend(self, place: "_CheckedPlace", plan: ModelPlan) -> Iterator[CheckProblem]:
        name = plan.backend.lower()
        if plan.is_backend_assumed:
            sentence = f"names no backend: {plan.backend} is taken for its GGUF file"
            yield place.problem(ProblemSeverity.NOTE, CheckKind.NO_BACKEND, ("backend",), sentence)
        elif not name:
            sentence = "names no backend: nothing can serve it"
            yield place.problem(ProblemSeverity.ERROR, CheckKind.NO_BACKEND, ("backend",), sentence)
        elif self._rules.backends and name not in self._rules.backends:
            hint = self._near(CheckKind.BACKEND, name, self._rules.backends)
            sentence = f"the backend {plan.backend[:_SHOWN]!r} is in no gallery of backends{hint}"
            yield place.problem(ProblemSeverity.WARNING, CheckKind.BACKEND, ("backend",), sentence)

    def _near(self, kind: CheckKind, name: str, names: Collection[str]) -> str:
        """Suggest a name, for the first few that are unknown: comparing with thousands takes a while."""
        if (kind, name) not in self._hints:
            self._hints[kind, name] = _hint(name, names) if len(self._hints) < _MOST_HINTS else ""
        return self._hints[kind, name]


def _hint(name: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(name[:_SHOWN], names, n=1, cutoff=_NEAR)
    return f"; did you mean {near[0]}?" if near else ""


class _CheckedPlace(msgspec.Struct, frozen=True):
    """Where the parts of a model come from: the entry, or its base."""

    entry: GalleryModel
    base: BaseDefinition

    def problem(self, severity: ProblemSeverity, kind: CheckKind, path: ConfigPath, sentence: str) -> CheckProblem:
        """A problem at a key of the configuration: where the overrides have it, or else in the base."""
        names = list(itertools.takewhile(lambda part: isinstance(part, str), path))
        dotted = ".".join(map(str, names))
        is_of_entry = value_at(self.entry.overrides, dotted) is not None
        is_of_base = not is_of_entry and bool(self.entry.url) and value_at(self.base.config, dotted) is not None
        config = self.base.config if is_of_base else self.entry.overrides if is_of_entry else self.entry.config
        line = key_line(config, [str(name) for name in names])
        return CheckProblem(
            severity=severity,
            kind=kind,
            entry=self.entry.name,
            line=line or (0 if is_of_base else self.entry.line),
            field=shown_path(path),
            sentence=sentence,
            base=self.entry.url if is_of_base else "",
        )

    def file_problem(self, severity: ProblemSeverity, kind: CheckKind, file: ModelFile, sentence: str) -> CheckProblem:
        is_of_entry = file in self.entry.files
        return CheckProblem(
            severity=severity,
            kind=kind,
            entry=self.entry.name,
            line=file.line or (self.entry.line if is_of_entry else 0),
            field="files" if is_of_entry or file in self.base.files else "download_files",
            sentence=sentence,
            base=self.entry.url if file in self.base.files else "",
        )


def _problem(
    entry: GalleryModel, severity: ProblemSeverity, kind: CheckKind, path: ConfigPath, sentence: str
) -> CheckProblem:
    return CheckProblem(
        severity=severity,
        kind=kind,
        entry=entry.name,
        line=entry.lines.get(str(path[0]).partition(".")[0], entry.line),
        field=shown_path(path),
        sentence=sentence,
    )
