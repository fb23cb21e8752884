"""Models in the database: a change wins or writes nothing, and everything that a model ever was can be read again."""

import pytest
from msgspec.structs import replace

from corral.frontend.models.decide.stored import (
    ImportedFile,
    KnownStore,
    ModelChangeKind,
    ModelSource,
    StoredModel,
    WeightFile,
    revision_row,
)
from corral.frontend.models.store import models as models_module
from corral.frontend.models.store.models import StoredModels
from corral.frontend.models.store.stores import ModelImports, ModelStores, TakenOver
from corral.frontend.record.store import Events
from corral.frontend.store.db import Database
from corral.hubs.plans import ModelOrigin
from tests.kit.samples import after, an_event

MODEL = StoredModel(
    name="small",
    number=1,
    revision="r1",
    text="name: small # ünïcode\n",
    source=ModelSource.PULL,
    origin=ModelOrigin(reference="hf://a/b", resolved="hf://a/b@c", licence="mit"),
    files=(WeightFile(path="b/w.gguf", size=2**40, digest="sha256:00"),),
    is_pinned=True,
    changed_at=after(0),
    changed_by="me",
)
ADDED, EDITED = ModelChangeKind.ADDED, ModelChangeKind.EDITED


@pytest.fixture
def store(database: Database) -> StoredModels:
    return StoredModels(database)


async def test_a_model_comes_back_as_it_was_written(store: StoredModels) -> None:
    assert await store.write(MODEL, ADDED, events=[an_event()])
    assert await store.get("small") == MODEL
    assert await store.history("small") == [revision_row(MODEL, ADDED)]
    assert (await store.marks())["small"] == (1, MODEL.files)


async def test_of_two_changes_on_one_read_the_second_writes_nothing(store: StoredModels, database: Database) -> None:
    assert await store.write(MODEL, ADDED, events=[])
    mine, theirs = [replace(MODEL, number=2, text=f"name: small # {who}\n") for who in ("mine", "theirs")]
    assert await store.write(mine, EDITED, events=[an_event()])
    assert not await store.write(theirs, EDITED, events=[an_event()])
    assert await store.get("small") == mine
    assert [one.text for one in await store.history("small")] == [mine.text, MODEL.text]
    assert await Events(database).last_sequence() == 1


async def test_numbers_and_times_go_on_after_a_removal(store: StoredModels, database: Database) -> None:
    assert await store.write(MODEL, ADDED, events=[])
    last = revision_row(replace(MODEL, number=2, changed_at=after(60)), ModelChangeKind.REMOVED)
    assert await ModelImports(database).take_over("s", TakenOver(removed=[last]))
    assert (await store.get("small"), await store.marks()) == (None, {})
    known = (await store.last_changes(["small", "never"]))["small"]
    assert (known.number, known.at) == (2, after(60))
    assert known.next_at(after(10)) > after(60), "whatever the clock of another frontend says"
    assert (await store.at("small", 1), await store.at("small", 3)) == (revision_row(MODEL, ADDED), None)


async def test_the_history_of_one_model_is_bounded(store: StoredModels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models_module, "MOST_REVISIONS", 3)
    for number in range(1, 6):
        assert await store.write(replace(MODEL, number=number), EDITED, events=[])
    assert [one.number for one in await store.history("small")] == [5, 4, 3]


async def test_sizes_are_noted_without_a_change_unless_the_model_is_another_one(store: StoredModels) -> None:
    assert await store.write(MODEL, ADDED, events=[])
    measured = (WeightFile(path="w.gguf", size=7),)
    await store.measure([(MODEL, measured), (replace(MODEL, name="gone"), measured)])
    assert await store.get("small") == replace(MODEL, files=measured)
    await store.measure([(replace(MODEL, number=2), ())])
    assert await store.get("small") == replace(MODEL, files=measured)


async def test_what_files_say_is_written_whole_or_not_at_all(store: StoredModels, database: Database) -> None:
    imports = ModelImports(database)
    file = ImportedFile(path="small.yaml", digest="d", names={"small": "t"})
    assert await imports.take_over("s", TakenOver(files=[file], models=[MODEL]))
    assert (await imports.of("s"), await imports.of("other")) == ({"small.yaml": file}, {})
    other = replace(MODEL, name="other")
    lost = TakenOver(files=[replace(file, digest="e")], models=[other, MODEL], forgotten=["small.yaml"])
    assert not await imports.take_over("s", lost)
    assert (await imports.of("s"), await store.get("other")) == ({"small.yaml": file}, None)
    assert await imports.take_over("s", TakenOver(forgotten=["small.yaml"]))
    assert await imports.of("s") == {}


async def test_stores_are_known_as_they_were_last_seen(database: Database) -> None:
    stores = ModelStores(database)
    store = KnownStore(id="s", name="a:/m", frontend_id="f", total_bytes=2, free_bytes=1, seen_at=after(0))
    await stores.see(store)
    again = replace(store, frontend_id="g", free_bytes=0, seen_at=after(1))
    await stores.see(again)
    assert (await stores.all(), await stores.get("s"), await stores.get("t")) == ([again], again, None)
