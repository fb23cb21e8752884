"""Several frontends, one truth: models that one takes over or changes are those of all, whatever dies meanwhile."""

import asyncio
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import delete

from corral.base.errors import Conflict, DatabaseUnavailable, NotFound
from corral.base.tasks import running
from corral.frontend.models import watch as watch_module
from corral.frontend.models.decide.model import read_model
from corral.frontend.models.store.stores import ModelImports, TakenOver
from corral.frontend.store.schema import model_imports, model_revisions, model_stores, models, removed_models
from corral.processes.control import Control, build_control
from tests.kit.gguf import LLAMA, gguf, tensor
from tests.kit.waiting import eventually
from tests.kit.world import MODEL, World, view_of

BIG = "name: big\nbackend: echo\nparameters: {model: big.gguf}\n"
OLD = {"name": "small", "backend": "echo", "parameters": {"model": "small.gguf"}}


async def another(world: World, directory: Path | None = None) -> Control:
    """Another frontend on the same database, with the same directory or with this one."""
    config = replace(world.control.context.config, models_path=directory or world.models)
    return await build_control(config, world.clock, world.stores, world.bus, loader=world.loader)


def names(control: Control) -> list[str]:
    return sorted(control.context.models.catalogue.catalogue.models)


def threads(control: Control, name: str = "small") -> object:
    return control.context.models.catalogue.find(name).config.get("threads")


async def seen(condition: Callable[[], bool], what: str) -> None:
    async def look() -> bool:
        return condition()

    await eventually(look, what)


async def numbers(world: World, name: str = "small") -> list[int]:
    return [one.number for one in await world.control.context.models.changes.history(name)]


async def test_what_one_changes_the_other_sees_a_moment_later(world: World, tmp_path: Path) -> None:
    other = await another(world, tmp_path / "nowhere")
    async with AsyncExitStack() as stack:
        for subject, handler in other.context.record.subscriptions().items():
            stack.push_async_callback((await world.bus.subscribe(subject, handler)).close)
        for name, loop in other.loops().items():
            if name == "catalogue":
                await stack.enter_async_context(running(loop, name=name))
            else:
                loop.close()
        await world.control.context.models.changes.add(BIG, by="me")
        await seen(lambda: names(other) == ["big", "small"], "the other frontend has the new model")
        await world.write(MODEL + "threads: 2\n")
        await seen(lambda: threads(other) == 2, "the other frontend has the changed file")
        await world.control.context.models.removal.remove("big", by="me")
        await seen(lambda: names(other) == ["small"], "the other frontend knows of the removal")


async def test_a_frontend_without_the_directory_serves_from_the_database(world: World, tmp_path: Path) -> None:
    (world.models / "small.gguf").write_bytes(b"weights")
    await world.control.context.models.watch.look()
    other = (await another(world, tmp_path / "nowhere")).context.models.catalogue
    spec = other.find("small")
    assert (other.is_readable, other.size_of(spec), other.file_of(spec)) == (True, 7, "")
    own = world.control.context.models.catalogue
    assert own.file_of(own.find("small")) == str(world.models / "small.gguf")
    (world.models / "small.gguf").write_bytes(b"more weights")
    await world.control.context.models.watch.look()
    await other.refresh()
    assert other.size_of(spec) == 12
    assert await numbers(world) == [1], "sizes are no changes"


async def test_what_a_file_says_about_memory_is_known_where_the_file_is_not(world: World, tmp_path: Path) -> None:
    weights = world.models / "told.gguf"
    weights.write_bytes(gguf(tensor("token_embd.weight", 8, 100), **LLAMA))
    await world.write("name: told\nbackend: llama-cpp\nparameters: {model: told.gguf}\n", "told.yaml")
    await world.control.context.models.watch.look()
    own, other = (
        frontend.context.models.catalogue for frontend in (world.control, await another(world, tmp_path / "nowhere"))
    )
    first = own.needs_of(own.find("told"))
    assert (first.source, first.disk) == ("GGUF metadata", weights.stat().st_size)
    assert other.needs_of(other.find("told")) == first

    weights.write_bytes(gguf(tensor("token_embd.weight", 8, 100), **{**LLAMA, "llama__block_count": 64}))
    await world.control.context.models.watch.look()
    await other.refresh()
    second = other.needs_of(other.find("told"))
    assert second == own.needs_of(own.find("told"))
    assert second.ram - first.ram == 4096 * 32 * 8 * 256 * 2, "the cache of 32 more blocks"
    restarted = (await another(world)).context.models.catalogue
    assert restarted.needs_of(restarted.find("told")) == second

    weights.write_bytes(b"GGUF but no more")
    await world.control.context.models.watch.look()
    assert own.needs_of(own.find("told")).source == "file size"


async def test_a_directory_of_an_earlier_version_is_taken_over_and_no_replica_is_replaced(world: World) -> None:
    await world.worker("a", "echo")
    replica = await world.loaded()
    assert replica.revision == read_model(OLD, source="").revision
    async with world.stores.database.begin() as connection:
        for table in (models, model_revisions, model_imports, model_stores):
            await connection.execute(delete(table))
    upgraded = await another(world)
    assert names(upgraded) == ["small"]
    assert await upgraded.context.serving.replicas.revisions_of("small") == {replica.id: replica.revision}
    assert upgraded.context.models.catalogue.revision_of("small") == replica.revision
    assert not await upgraded.context.serving.unloading.sweep()


async def test_what_an_earlier_version_removed_stays_removed(world: World) -> None:
    """It kept no history: there the age of a file that it could not delete tells."""
    await world.control.context.models.removal.remove("small", by="me")
    async with world.stores.database.begin() as connection:
        for table in (models, model_revisions, model_imports, model_stores):
            await connection.execute(delete(table))
        await connection.execute(removed_models.update().values(cleared=None))
    (world.models / "small.yaml").write_text(MODEL)  # the clock of this world is far ahead
    upgraded = await another(world)
    assert (names(upgraded), (world.models / "small.yaml").exists()) == ([], False)


async def test_two_that_share_a_directory_make_one_change_of_one_change(world: World) -> None:
    other = await another(world)
    (world.models / "small.yaml").write_text(MODEL + "threads: 2\n")
    both = (world.control, other)
    await asyncio.gather(*(control.context.models.watch.look() for control in both))
    # Either may be the one that made the change; the other is told of it.
    await asyncio.gather(*(control.context.models.catalogue.refresh() for control in both))
    assert (threads(world.control), threads(other), await numbers(world)) == (2, 2, [2, 1])


async def test_a_copy_that_is_left_somewhere_never_fights(world: World) -> None:
    copy = world.models.with_name("copy")
    shutil.copytree(world.models, copy, ignore=shutil.ignore_patterns(".corral"))
    await world.write(MODEL + "threads: 2\n")
    (copy / "small.yaml").write_text(MODEL + "threads: 7\n")
    other = await another(world, copy)
    for control in (other, world.control, other):
        await control.context.models.watch.look()
    assert (threads(other), await numbers(world)) == (2, [2, 1])
    (copy / "small.yaml").write_text(MODEL + "threads: 8\n")
    await other.context.models.watch.look()
    await world.control.context.models.catalogue.refresh()
    assert (threads(other), threads(world.control)) == (8, 8), "a change is a change, wherever it is made"


async def test_a_file_counts_again_when_it_changes_and_not_when_it_is_only_there(world: World) -> None:
    changes = world.control.context.models.changes
    await changes.edit("small", MODEL + "threads: 3\n", by="me")
    await world.control.context.models.watch.look()
    restarted = await another(world)
    assert (threads(world.control), threads(restarted)) == (3, 3)
    await world.write(MODEL + "threads: 4\n")
    history = await changes.history("small")
    assert [(one.change, one.changed_by) for one in history] == [
        ("file", "file small.yaml"),
        ("edited", "me"),
        ("file", "file small.yaml"),
    ]
    assert threads(world.control) == 4


async def test_a_file_that_goes_takes_its_model_along_unless_somebody_edited_that(world: World) -> None:
    await world.write(BIG, "big.yaml")
    await world.control.context.models.changes.edit("small", MODEL + "threads: 3\n", by="me")
    for name in ("small.yaml", "big.yaml"):
        await world.delete(name)
    assert names(world.control) == ["small"]
    assert [one.change for one in await world.control.context.models.changes.history("big")] == ["removed", "file"]
    await world.write(BIG, "big.yaml")
    assert (names(world.control), await numbers(world, "big")) == (["big", "small"], [3, 2, 1])


async def test_a_file_with_another_name_is_no_other_model(world: World) -> None:
    revision = world.control.context.models.catalogue.revision_of("small")
    (world.models / "small.yaml").rename(world.models / "renamed.yaml")
    await world.control.context.models.watch.look()
    spec = world.control.context.models.catalogue.find("small")
    assert (spec.source, spec.revision) == ("renamed.yaml", revision)
    await world.delete("renamed.yaml")
    assert names(world.control) == []


async def test_a_disk_that_is_not_mounted_removes_nothing(world: World) -> None:
    aside = world.models.with_name("aside")
    world.models.rename(aside)
    world.models.mkdir()
    for control in (world.control, await another(world)):
        await control.context.models.watch.look()
        assert names(control) == ["small"]
    shutil.rmtree(world.models)
    aside.rename(world.models)
    await world.write(MODEL + "threads: 2\n")
    assert threads(world.control) == 2


async def test_of_two_edits_at_two_frontends_one_is_told_of_the_other(world: World) -> None:
    other = await another(world)
    edits = [
        control.context.models.changes.edit("small", f"{MODEL}threads: {count}\n", by=f"by {count}")
        for count, control in enumerate((world.control, other), 2)
    ]
    outcomes = await asyncio.gather(*edits, return_exceptions=True)
    lost = [one for one in outcomes if isinstance(one, BaseException)]
    assert len(await numbers(world)) == 3 - len(lost)
    for one in lost:
        assert isinstance(one, Conflict)
        assert "was changed meanwhile by by " in one.message


@pytest.mark.parametrize("survived", range(4))
async def test_a_take_over_that_is_cut_is_finished_by_the_next_start(
    world: World, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    monkeypatch.setattr(watch_module, "_AT_ONCE", 1)
    directory = world.models.with_name("many")
    directory.mkdir()
    for number in range(4):
        (directory / f"m{number}.yaml").write_text(BIG.replace("big", f"m{number}"))
    whole, left = ModelImports.take_over, [survived]

    async def cut(self: ModelImports, store_id: str, taken: TakenOver) -> bool:
        left[0] -= 1
        if left[0] < 0:
            raise DatabaseUnavailable("gone")
        return await whole(self, store_id, taken)

    with monkeypatch.context() as patched:
        patched.setattr(ModelImports, "take_over", cut)
        with pytest.raises(DatabaseUnavailable):
            await another(world, directory)
    heir = await another(world, directory)
    assert names(heir) == ["m0", "m1", "m2", "m3", "small"]
    assert [await numbers(world, f"m{number}") for number in range(4)] == [[1]] * 4


async def test_a_database_that_is_away_loses_no_change_of_a_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(self: ModelImports, store_id: str, taken: TakenOver) -> bool:
        raise DatabaseUnavailable("gone")

    with monkeypatch.context() as patched:
        patched.setattr(ModelImports, "take_over", gone)
        with pytest.raises(DatabaseUnavailable):
            await world.write(MODEL + "threads: 2\n")
    assert threads(world.control) is None
    await world.control.context.models.watch.look()
    assert threads(world.control) == 2


async def test_templates_beside_models_are_read_by_their_names(world: World, tmp_path: Path) -> None:
    (world.models / "plain.tmpl").write_text("{{.Input}}!\n")
    (tmp_path / "secret.tmpl").write_text("hidden {{.Input}}")
    (world.models / "link.tmpl").symlink_to(tmp_path / "secret.tmpl")
    catalogue = world.control.context.models.catalogue
    for outside in ("../secret", "link"):
        await world.write(f"{MODEL}template: {{chat: {outside}}}\n")
        assert "hidden" not in str(catalogue.find("small").config)
    await world.write(MODEL + "template: {chat: plain}\n")
    assert catalogue.find("small").config["template"] == {"chat": "{{.Input}}!\n"}
    revision = catalogue.revision_of("small")
    (world.models / "plain.tmpl").write_text("{{.Input}}?\n")
    await world.control.context.models.watch.look()
    assert catalogue.revision_of("small") != revision
    (world.models / "plain.tmpl").write_text("{{ nonsense }}\n")
    await world.control.context.models.watch.look()
    (problem,) = catalogue.catalogue.problems
    assert problem.problem.startswith("line 5: template.chat: line 1 of the template: ")
    assert catalogue.find("small").config["template"]["chat"] == "{{.Input}}?\n"  # type: ignore[index]


async def test_lone_weights_are_offered_and_not_added(world: World) -> None:
    for name in ("small.gguf", "lone.gguf", "eye-mmproj.gguf", "s-00001-of-00002.gguf", "s-00002-of-00002.gguf"):
        (world.models / name).write_bytes(b"w")
    await world.control.context.models.watch.look()
    listed = (await world.frontend.call("GET", "/api/v1/models")).json()
    assert [one["path"] for one in listed["offered"]] == ["lone.gguf", "s-00001-of-00002.gguf"]
    assert [one["name"] for one in listed["items"]] == ["small"]


async def test_a_disabled_model_answers_nobody_and_is_shown(world: World) -> None:
    await world.write(MODEL + "disabled: true\n")
    assert (await view_of(world.control)).models == {}
    with pytest.raises(NotFound):
        await world.loads.ensure("small")
    shown = (await world.frontend.call("GET", "/api/v1/models/small")).json()
    assert (shown["is_disabled"], shown["kind"], shown["number"], shown["changed_by"]) == (
        True,
        "file",
        2,
        "file small.yaml",
    )
    await world.control.context.models.changes.enable("small", by="me")
    assert list((await view_of(world.control)).models) == ["small"]
    await world.write(MODEL + "disabled: true\nthreads: 2\n")
    assert list((await view_of(world.control)).models) == ["small"], "the file says nothing new about that"
