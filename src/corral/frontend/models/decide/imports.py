"""What files of a models directory change about models. Pure.

Only a change of what a file says counts: a copy that was left somewhere, or a file that is older than a change through
the API, says nothing new. A file that cannot be read takes nothing away, and of two files that hold one model the one
that was known first says what it is.
"""

from collections.abc import Collection, Mapping, Sequence, Set

import msgspec

from corral.frontend.models.decide.model import ModelProblem
from corral.frontend.models.decide.reading import ReadModel, digest_of
from corral.frontend.models.decide.stored import ImportedFile, StoredModel


class ModelFileContent(msgspec.Struct, frozen=True, kw_only=True):
    """The models that a file of the models directory holds now."""

    digest: str
    """Digest of the file's content and of the templates that the file names."""
    models: tuple[ReadModel, ...] = ()
    is_whole: bool = True
    """Whether all of it can be used. What a file held before counts until it is whole again."""
    age: int = 0
    """When it came to be as it is, to tell which of two was there first."""


class KnownModels(msgspec.Struct, frozen=True, kw_only=True):
    """What the database knows before files are taken over."""

    imports: Mapping[str, ImportedFile]
    """What the files of this directory said when they were last taken over, by their paths."""
    models: Mapping[str, StoredModel]
    ended: Mapping[str, Set[str]] = msgspec.field(default_factory=dict)
    """Digests of what models were that were removed, for a directory that is seen for the first time."""
    is_new: bool = False
    """Whether the directory is seen for the first time."""


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from one file."""

    note: ImportedFile | None = None
    """None: the file is gone."""
    path: str
    models: tuple[ReadModel, ...] = ()
    removed: tuple[str, ...] = ()


class ImportPlan(msgspec.Struct, frozen=True, kw_only=True):
    changes: tuple[FileChange, ...] = ()
    problems: tuple[ModelProblem, ...] = ()


def plan_imports(
    files: Mapping[str, ModelFileContent], stored: KnownModels, *, fresh: Collection[str], may_remove: bool = True
) -> ImportPlan:
    """What to write, given what the files hold now.

    `fresh` are files whose content this frontend has not handled yet: of others, what the database knows may be newer
    than what this frontend sees. `may_remove` is false when not all files were read.
    """
    owners = _owners(files, stored)
    changes, problems = [], []
    for path, file in sorted(files.items()):
        before = stored.imports.get(path, ImportedFile(path=path, digest=""))
        problems += [
            ModelProblem(
                source=path,
                name=model.spec.name,
                problem=f"the name is taken by {owners[model.spec.name]}, which was known first",
            )
            for model in file.models
            if owners[model.spec.name] != path
        ]
        if path in fresh or before.digest == file.digest:
            change = _change(path, file, before, stored, owners, may_remove=may_remove)
            if change is not None:
                changes.append(change)
    if may_remove:
        changes += [
            FileChange(path=path, removed=tuple(sorted(_ended(before, before.names, stored, owners))))
            for path, before in sorted(stored.imports.items())
            if path not in files
        ]
    return ImportPlan(changes=tuple(changes), problems=tuple(problems))


def _owners(files: Mapping[str, ModelFileContent], stored: KnownModels) -> dict[str, str]:
    """Which file says what each model is: the one that does so now, or was heard before, or else the one that has been
    as it is for longest."""
    owners: dict[str, str] = {}
    earlier_names = {path: imported.names for path, imported in stored.imports.items()}
    for path, file in sorted(files.items(), key=lambda item: (item[1].age, item[0])):
        for model in file.models:
            name = model.spec.name
            if name not in owners or (
                name in earlier_names.get(path, ()) and name not in earlier_names.get(owners[name], ())
            ):
                owners[name] = path
    for name in owners:
        row = stored.models.get(name)
        former = "" if row is None else row.file
        if former in files and _holds(files[former], name):
            owners[name] = former
    return owners


def _holds(file: ModelFileContent, name: str) -> bool:
    return any(model.spec.name == name for model in file.models)


def _change(
    path: str,
    file: ModelFileContent,
    before: ImportedFile,
    stored: KnownModels,
    owners: Mapping[str, str],
    *,
    may_remove: bool,
) -> FileChange | None:
    models_here = [model for model in file.models if owners[model.spec.name] == path]
    now = {model.spec.name: model.digest for model in models_here}
    missing = {name: digest for name, digest in before.names.items() if name not in now}
    still_listed = {} if file.is_whole and may_remove else missing
    digest = file.digest if file.is_whole else before.digest
    note = ImportedFile(path=path, digest=digest, names={**still_listed, **now})
    models = tuple(
        model
        for model in models_here
        if before.names.get(model.spec.name) != model.digest and _is_news(model, path, stored)
    )
    removed = tuple(sorted(_ended(before, missing.keys() - still_listed.keys(), stored, owners)))
    if note == before and not models and not removed:
        return None
    return FileChange(path=path, note=note, models=models, removed=removed)


def _is_news(model: ReadModel, path: str, stored: KnownModels) -> bool:
    """Whether what a file says about a model, which it did not say before, is to become true."""
    row = stored.models.get(model.spec.name)
    if stored.is_new:
        return row is None and model.digest not in stored.ended.get(model.spec.name, ())
    if row is not None and row.text == model.text:
        return bool(row.file) and row.file != path  # another file says it from now on
    return True


def _ended(
    before: ImportedFile, names: Collection[str], stored: KnownModels, owners: Mapping[str, str]
) -> Sequence[str]:
    """Return the models that go with a deleted file: nobody changed them since, and no other file holds them."""
    return [
        name
        for name in names
        if name not in owners
        and (row := stored.models.get(name)) is not None
        and row.file == before.path
        and digest_of(row.text) == before.names[name]
    ]
