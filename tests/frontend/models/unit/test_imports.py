"""What files change about models, whatever people and frontends do: only a change counts, and it counts once."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from corral.frontend.models.decide.imports import ImportPlan, KnownModels, ModelFileContent, plan_imports
from corral.frontend.models.decide.reading import ReadModel, digest_of, read_one
from corral.frontend.models.decide.stored import ImportedFile, ModelSource, StoredModel
from corral.hubs.plans import ModelOrigin
from tests.kit.samples import after

NAMES, PATHS, STORES = ("a", "b"), ("x.yaml", "y.yaml", "z.yaml"), (0, 1)
READ = {
    (name, number): read_one(f"name: {name}\nbackend: echo\nthreads: {number}\nparameters: {{model: {name}}}\n")
    for name in NAMES
    for number in range(1, 4)
}


def said(models: list[ReadModel], *, is_whole: bool = True, age: int = 0) -> ModelFileContent:
    digest = digest_of("".join(one.text for one in models) + str(is_whole))
    return ModelFileContent(digest=digest, models=tuple(models), is_whole=is_whole, age=age)


@dataclass
class Store:
    """A directory, and what the frontend that has it remembers."""

    files: dict[str, ModelFileContent] = field(default_factory=dict)
    imports: dict[str, ImportedFile] = field(default_factory=dict)
    handled: dict[str, str] = field(default_factory=dict)
    is_new: bool = True
    is_touched: bool = True
    """Whether somebody changed a file since the last look."""


class Frontends(RuleBasedStateMachine):
    """Two frontends with a directory each, one database."""

    def __init__(self) -> None:
        super().__init__()
        self.stores = [Store() for _ in STORES]
        self.rows: dict[str, StoredModel] = {}
        self.ended: dict[str, set[str]] = {}
        self.numbers: dict[str, int] = dict.fromkeys(NAMES, 0)
        self.age = 0

    @rule(
        store=st.sampled_from(STORES),
        path=st.sampled_from(PATHS),
        numbers=st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3), max_size=2),
        is_whole=st.booleans(),
    )
    def somebody_writes(self, store: int, path: str, numbers: dict[str, int], is_whole: bool) -> None:
        self.age += 1
        models = [READ[item] for item in sorted(numbers.items())]
        self.stores[store].files[path] = said(models, is_whole=is_whole and bool(models), age=self.age)
        self.stores[store].is_touched = True

    @rule(store=st.sampled_from(STORES), path=st.sampled_from(PATHS))
    def somebody_deletes(self, store: int, path: str) -> None:
        if self.stores[store].files.pop(path, None) is not None:
            self.stores[store].is_touched = True

    @rule(name=st.sampled_from(NAMES), number=st.integers(1, 3))
    def somebody_edits(self, name: str, number: int) -> None:
        self._set(READ[name, number], ModelSource.API, None)

    @rule(name=st.sampled_from(NAMES))
    def somebody_removes(self, name: str) -> None:
        self._end(name)

    @rule(store=st.sampled_from(STORES))
    def a_frontend_restarts(self, store: int) -> None:
        self.stores[store].handled = {}

    @rule(store=st.sampled_from(STORES))
    def a_frontend_looks(self, store: int) -> None:
        here, before = self.stores[store], dict(self.rows)
        plan = self._look(here)
        if not here.is_touched:
            assert self.rows == before, "no file changed"
        here.is_touched = False
        for name, row in before.items():
            if name not in self.rows:
                assert row.source is ModelSource.FILE, "what somebody edited stays"
        taken = {problem.name for problem in plan.problems}
        again = self._look(here)
        assert again.changes == (), "what was taken over is taken over"
        assert {problem.name for problem in again.problems} == taken

    @rule(store=st.sampled_from(STORES))
    def a_disk_is_not_mounted(self, store: int) -> None:
        here = self.stores[store]
        fresh = list(here.files)
        known = KnownModels(imports=here.imports, models=self.rows)
        plan = plan_imports({}, known, fresh=fresh, may_remove=False)
        assert plan.changes == ()

    @invariant()
    def numbers_count_up(self) -> None:
        for name, row in self.rows.items():
            assert row.number == self.numbers[name]

    def _look(self, here: Store) -> ImportPlan:
        known = KnownModels(imports=here.imports, models=self.rows, ended=self.ended, is_new=here.is_new)
        fresh = [path for path, file in here.files.items() if here.handled.get(path) != file.digest]
        plan = plan_imports(here.files, known, fresh=fresh)
        for change in plan.changes:
            for one in change.models:
                self._set(one, ModelSource.FILE, ModelOrigin(reference=change.path))
            for name in change.removed:
                self._end(name)
            if change.note is None:
                del here.imports[change.path]
            else:
                here.imports[change.path] = change.note
        here.handled = {path: file.digest for path, file in here.files.items()}
        here.is_new = False
        return plan

    def _set(self, read: ReadModel, source: ModelSource, origin: ModelOrigin | None) -> None:
        name = read.spec.name
        self.numbers[name] += 1
        self.rows[name] = StoredModel(
            name=name,
            number=self.numbers[name],
            revision=read.spec.revision,
            text=read.text,
            source=source,
            origin=origin,
            changed_at=after(self.numbers[name]),
            changed_by="me",
        )

    def _end(self, name: str) -> None:
        if (row := self.rows.pop(name, None)) is not None:
            self.numbers[name] += 1
            self.ended.setdefault(name, set()).add(digest_of(row.text))


TestFrontends = Frontends.TestCase
TestFrontends.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_another_name_for_a_file_is_told_as_one_change() -> None:
    model = READ["a", 1]
    row = StoredModel(
        name="a",
        number=1,
        revision="r",
        text=model.text,
        source=ModelSource.FILE,
        origin=ModelOrigin(reference="x.yaml"),
        changed_at=after(0),
        changed_by="file x.yaml",
    )
    imports = {"x.yaml": ImportedFile(path="x.yaml", digest="d", names={"a": model.digest})}
    plan = plan_imports({"y.yaml": said([model])}, KnownModels(imports=imports, models={"a": row}), fresh=["y.yaml"])
    assert [(change.path, change.models, change.removed) for change in plan.changes] == [
        ("y.yaml", (model,), ()),
        ("x.yaml", (), ()),
    ]
    assert plan.changes[1].note is None


def test_a_model_that_is_there_already_is_not_taken_over_by_a_directory_that_nobody_knew() -> None:
    model, other = READ["a", 1], READ["a", 2]
    row = StoredModel(
        name="a",
        number=1,
        revision="r",
        text=model.text,
        source=ModelSource.API,
        changed_at=after(0),
        changed_by="me",
    )
    known = KnownModels(imports={}, models={"a": row}, is_new=True)
    (change,) = plan_imports({"y.yaml": said([other])}, known, fresh=["y.yaml"]).changes
    assert (change.models, change.note) == (
        (),
        ImportedFile(path="y.yaml", digest=said([other]).digest, names={"a": other.digest}),
    )
    (changed,) = plan_imports({"y.yaml": said([other])}, replace(known, is_new=False), fresh=["y.yaml"]).changes
    assert changed.models == (other,)
