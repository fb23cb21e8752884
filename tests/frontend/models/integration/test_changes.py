"""Changes of models through the API's service: checked, guarded, told, and with a way back."""

import pytest

from corral.base.errors import Conflict, InvalidInput, NotFound
from corral.frontend.models.changes import ModelChanges
from corral.frontend.models.decide.changing import ModelProvenance
from corral.frontend.models.decide.stored import ModelSource, WeightFile
from corral.frontend.record.decide import EventKind
from corral.frontend.store.schema import models
from corral.hubs.plans import ModelOrigin
from tests.kit.world import World

TEXT = "# mine\nname: big\nbackend: echo\nparameters:\n  model: big.gguf\n"


@pytest.fixture
def changes(world: World) -> ModelChanges:
    return world.control.context.models.changes


async def test_a_model_is_added_edited_and_rolled_back(changes: ModelChanges, world: World) -> None:
    added = await changes.add(TEXT, by="ann")
    edited = await changes.edit("big", TEXT + "threads: 2\n", by="bob", if_revision=added.revision)
    back = await changes.rollback("big", added.number, by="eve")
    assert (added.number, edited.number, back.number) == (1, 2, 3)
    assert added.revision == back.revision != edited.revision
    history = await changes.history("big")
    assert [(one.number, one.change, one.changed_by) for one in history] == [
        (3, "rolled_back", "eve"),
        (2, "edited", "bob"),
        (1, "added", "ann"),
    ]
    assert (history[0].text, history[1].text) == (TEXT, TEXT + "threads: 2\n")
    events = [one.data for one in await world.events(EventKind.MODEL_CHANGED) if one.data["model"] == "big"]
    assert [one["change"] for one in events] == ["added", "edited", "rolled_back"]


async def test_whoever_edits_what_is_another_one_by_now_is_told_who_changed_it(changes: ModelChanges) -> None:
    first = await changes.add(TEXT, by="ann")
    await changes.edit("big", TEXT + "threads: 2\n", by="bob")
    with pytest.raises(Conflict, match="changed by bob at 20"):
        await changes.edit("big", TEXT + "threads: 3\n", by="eve", if_revision=first.revision)
    with pytest.raises(Conflict, match="is there already, changed by bob"):
        await changes.add(TEXT, by="eve")


async def test_nothing_is_written_for_what_is_refused_or_only_tried(changes: ModelChanges) -> None:
    with pytest.raises(InvalidInput, match=r'line 6: context_size: must be a whole number, got text \("many"\)'):
        await changes.add(TEXT + "context_size: many\n", by="ann")
    with pytest.raises(InvalidInput, match="has the key 'backend' twice, again in line 6"):
        await changes.add(TEXT + "backend: echo\n", by="ann")
    with pytest.raises(InvalidInput, match=r"line 7: template\.chat: line 2 of the template: .*nonsense"):
        await changes.add(TEXT + "template:\n  chat: |\n    hello\n    {{ nonsense }}\n", by="ann")
    tried = await changes.add(TEXT + "contxt_size: 8\n", by="ann", dry_run=True)
    assert tried.warnings == ("line 6: unknown key 'contxt_size', which has no effect; did you mean context_size?",)
    with pytest.raises(NotFound, match="'bigg' does not exist"):
        await changes.history("bigg")
    with pytest.raises(NotFound):
        await changes.edit("big", TEXT, by="ann")


async def test_the_same_again_makes_no_revision(changes: ModelChanges) -> None:
    await changes.add(TEXT, by="ann")
    again = await changes.edit("big", TEXT, by="bob")
    assert (again.number, again.change) == (1, None)


async def test_a_pull_of_what_is_there_changes_it_once(changes: ModelChanges) -> None:
    await changes.add(TEXT, by="ann")
    files = [WeightFile(path="big.gguf", size=3, digest="sha256:11")]
    for _ in range(2):
        pulled = await changes.add(
            TEXT,
            by="bob",
            provenance=ModelProvenance(ModelSource.PULL, ModelOrigin(reference="hf://a/b"), tuple(files)),
        )
    assert [one.change for one in await changes.history("big")] == ["pulled", "added"]
    assert (pulled.number, (await changes.history("big"))[0].files) == (2, tuple(files))


async def test_a_patch_merges_and_null_takes_away(changes: ModelChanges) -> None:
    await changes.add(TEXT + "threads: 2\n", by="ann")
    patched = await changes.patch("big", {"parameters": {"temperature": 0.5}, "threads": None}, by="bob")
    assert patched.text == "name: big\nbackend: echo\nparameters:\n  model: big.gguf\n  temperature: 0.5\n"
    with pytest.raises(InvalidInput, match="name: must stay 'big'"):
        await changes.patch("big", {"name": "other"}, by="bob")


async def test_a_model_that_would_be_refused_today_can_be_patched(changes: ModelChanges, world: World) -> None:
    await changes.add(TEXT, by="ann")
    async with world.stores.database.begin() as connection:  # as an earlier version may have stored it
        await connection.execute(models.update().values(text=TEXT + "template: {chat: '{{ nonsense }}'}\n"))
    await world.control.context.models.catalogue.refresh()
    patched = await changes.patch("big", {"template": {"chat": "{{.Input}}"}}, by="bob")
    assert (patched.number, "nonsense" in patched.text) == (2, False)


async def test_a_copy_keeps_comments_and_has_a_history_of_its_own(changes: ModelChanges) -> None:
    await changes.add(TEXT, by="ann")
    copied = await changes.copy("big", "on", by="bob")
    assert copied.text == TEXT.replace("name: big", "name: 'on'")
    assert [one.change for one in await changes.history("on")] == ["copied"]
    with pytest.raises(Conflict, match="on is there already"):
        await changes.copy("big", "on", by="bob")


async def test_states_are_changes_that_leave_the_revision_alone(changes: ModelChanges) -> None:
    added = await changes.add(TEXT, by="ann")
    for change in (changes.disable, changes.disable, changes.enable, changes.pin, changes.unpin):
        assert (await change("big", by="bob")).revision == added.revision
    kinds = [one.change for one in await changes.history("big")]
    assert kinds == ["unpinned", "pinned", "enabled", "disabled", "added"]


async def test_an_alias_needs_its_model(changes: ModelChanges) -> None:
    with pytest.raises(InvalidInput, match="alias: 'big' is no model"):
        await changes.add("name: short\nalias: big\n", by="ann")
    await changes.add(TEXT, by="ann")
    await changes.add("name: short\nalias: big\n", by="ann")
    with pytest.raises(InvalidInput, match="alias: 'short' is an alias itself"):
        await changes.add("name: shorter\nalias: short\n", by="ann")


async def test_replicas_that_will_be_replaced_are_named(changes: ModelChanges, world: World) -> None:
    await world.worker("a", "echo")
    replica = await world.loaded()
    text = (world.models / "small.yaml").read_text()
    tried = await changes.add(
        text + "threads: 3\n", by="ann", provenance=ModelProvenance(ModelSource.PULL), dry_run=True
    )
    assert tried.reloads == (replica.id,)
    same = await changes.add(
        text + "# a comment\n", by="ann", provenance=ModelProvenance(ModelSource.PULL), dry_run=True
    )
    assert (same.reloads, same.revision) == ((), replica.revision)
