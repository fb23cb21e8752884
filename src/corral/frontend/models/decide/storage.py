"""Which files of a store models need, and which of the others may go. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

import msgspec

from corral.frontend.models.decide.removal import is_among
from corral.frontend.models.decide.stored import StoredModel
from corral.hubs.plans import PullPlan


class FoundFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file in a store."""

    path: str
    """Path relative to the store's directory."""
    bytes: int
    is_ours: bool = False
    """Whether it was downloaded or checked by a pull, and not touched since."""


class FileVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a prune does about a file that no model needs."""

    path: str
    bytes: int
    kept: str = ""
    """Why it stays; empty: it goes."""


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """All that may need a file of the store: nothing that one of these names is deleted."""

    models: Sequence[StoredModel] = ()
    pulls: Sequence[PullPlan] = ()
    """Plans of the pulls that are not over."""
    texts: Mapping[str, str] | None = None
    """Configurations that lie in the store itself, by the names of their files."""
    paths: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    """What each model needs, by its name, as its configuration is understood: a text may be folded or escaped."""

    def owners(self, path: str) -> list[str]:
        """The models that need a file."""
        return [
            model.name for model in self.models if _needs(model, path) or is_among(path, self.paths.get(model.name, ()))
        ]

    def reason(self, path: str) -> str:
        """Who needs a file, as a clause; empty: nobody."""
        if owners := self.owners(path):
            return f"the model {owners[0]} needs it"
        for plan in self.pulls:
            if any(file.path == path for file in plan.files):
                return f"{plan.name} is being pulled"
        for name, text in (self.texts or {}).items():
            if path in text:
                return f"{name} names it"
        return ""


def _needs(model: StoredModel, path: str) -> bool:
    """A file counts as needed if the configuration names it, or a directory that it is in."""
    if any(_is_within(path, file.path) for file in model.files) or path in model.text:
        return True
    folders = [str(parent) for parent in PurePosixPath(path).parents][:-1]
    lines = [line.strip().strip("\"'") for line in model.text.splitlines()]
    return any(line == folder or line.endswith((f": {folder}", f": {folder}/")) for folder in folders for line in lines)


def _is_within(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place.rstrip('/')}/")


def judge(files: Iterable[FoundFile], needs: Needs) -> list[FileVerdict]:
    """All files that no model needs. Only what a pull brought may go: people keep other things there too.

    Hidden files that no pull brought are not mentioned: they are marks of programs, of Corral's own too.
    """
    verdicts = []
    for file in files:
        is_mark = not file.is_ours and PurePosixPath(file.path).name.startswith(".")
        if is_mark or needs.owners(file.path):
            continue
        reason = needs.reason(file.path) or ("" if file.is_ours else "it did not come by a pull")
        verdicts.append(FileVerdict(path=file.path, bytes=file.bytes, kept=reason))
    return verdicts
