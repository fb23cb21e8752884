"""The models directory: what is usable is used, and whatever else lies there is told and does no harm."""

import logging
import os
import time
from pathlib import Path

import pytest

from corral.base.clock import SystemClock
from corral.base.errors import NotFound
from corral.base.ids import FrontendId
from corral.bus.port import Bus
from corral.frontend.backends.decide.backend import with_alias_kept
from corral.frontend.models import directory as models_module
from corral.frontend.models.catalogue import Models
from corral.frontend.models.changes import ModelChanges
from corral.frontend.models.decide.model import Catalogue
from corral.frontend.models.decide.reading import DEEPEST, LARGEST_DOCUMENT, LARGEST_FILE
from corral.frontend.models.store.models import ModelRemovals, StoredModels
from corral.frontend.models.store.stores import ModelImports, ModelStores
from corral.frontend.models.watch import ModelsWatch
from corral.frontend.operations.store.operations import OperationStore
from corral.frontend.record.feed import Feed
from corral.frontend.store.db import Database
from tests.kit.gguf import LLAMA, gguf

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)

GOOD = "name: {name}\nbackend: echo\nparameters:\n  model: {name}.gguf\n"


class Watched:
    """A frontend's models, and its look at their directory."""

    def __init__(self, database: Database, bus: Bus, directory: Path) -> None:
        store, feed, clock = StoredModels(database), Feed(bus, FrontendId("f")), SystemClock()
        self.models = Models(directory, store)
        removals = ModelRemovals(database, OperationStore(database, with_alias_kept), on_removal=())
        imports, stores = ModelImports(database), ModelStores(database)
        self.watch = ModelsWatch(
            self.models, store, imports, stores, removals, feed, clock, frontend_id=FrontendId("f")
        )
        self.changes = ModelChanges(store, self.models.refresh, feed, clock, replicas=no_replicas)
        self.find, self.revision_of, self.directory = self.models.find, self.models.revision_of, directory

    @property
    def catalogue(self) -> Catalogue:
        return self.models.catalogue

    async def scan(self) -> None:
        await self.watch.look()
        await self.models.refresh()


async def no_replicas(model: str) -> dict[str, str]:
    return {}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    models.mkdir()
    (models / "good.yaml").write_text(GOOD.format(name="good"), encoding="utf-8")
    return models


@pytest.fixture
async def models(database: Database, bus: Bus, directory: Path) -> Watched:
    return Watched(database, bus, directory)


async def problems(models: Watched) -> dict[str, str]:
    await models.scan()
    return {one.source: one.problem for one in models.catalogue.problems}


def write(models: Watched, name: str, content: str | bytes) -> None:
    data = content.encode() if isinstance(content, str) else content
    (models.directory / name).write_bytes(data)


def laughs(levels: int) -> str:
    """Each level stands for nine times the one before."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n" + GOOD.format(name="bomb")


SELF = "name: me\nbackend: echo\nparameters: &p\n  model: x\n  more: *p\n"
CASES: dict[str, tuple[str | bytes, str]] = {
    "billion laughs": (
        laughs(30),
        f"stands for more than {LARGEST_DOCUMENT} values: do its aliases repeat each other?",
    ),
    "too large": ("a: " + "x" * LARGEST_FILE, "is larger than 256 KiB, which no model file needs"),
    "deep list": ("a: " + "[" * 5000 + "]" * 5000, f"is nested more than {DEEPEST} levels deep, in line 1"),
    "deep mapping": ("a: " + "{b: " * 5000 + "}" * 5000, f"is nested more than {DEEPEST} levels deep, in line 1"),
    "deep lines": (
        "\n".join(" " * n + "a:" for n in range(100)),
        f"is nested more than {DEEPEST} levels deep, in line {DEEPEST + 1}",
    ),
    "duplicate key": (GOOD.format(name="two") + "name: again\n", "has the key 'name' twice, again in line 5"),
    "duplicate below": ("name: x\nparameters: {model: a, model: b}\n", "has the key 'model' twice, again in line 2"),
    "contains itself": (SELF, "has an alias *p to what contains itself, in line 5"),
    "dangling alias": ("name: *nobody\n", "has an alias *nobody to what is not there, in line 1"),
    "not UTF-8": (b"name: caf\xe9\n", "is not UTF-8 text: see byte 9"),
    "UTF-16": ("name: x\n".encode("utf-16"), "is not UTF-8 text: see byte 0"),
    "control character": (b"name: \x00\n", "is not YAML: "),
    "no YAML": ("name: [", "is not YAML: "),
    "tab": ("name:\n\t- x\n", "is not YAML: "),
    "two documents": ("a: 1\n---\nb: 2\n", "holds more than one document; write several models as a list"),
    "empty": ("", "is empty"),
    "only a comment": ("# later\n", "is empty"),
    "empty list": ("[]\n", "is empty"),
    "a date that there is not": ("name: 2024-13-45\n", "backend: is missing"),
    "a huge number": ("name: " + "9" * 5000, "backend: is missing"),
    "a Python object": ("!!python/object/apply:os.system ['true']", "a model must be a mapping of keys to values"),
    "just text": ("hello", "a model must be a mapping of keys to values"),
    "no backend": ("name: x\nparameters: {model: y}\n", "backend: is missing"),
    "outside by dots": (
        GOOD.format(name="x").replace("x.gguf", "../../etc/shadow"),
        "line 4: parameters.model: must be below the models directory, got '../../etc/shadow'",
    ),
    "outside by root": (
        GOOD.format(name="x").replace("x.gguf", "/etc/shadow"),
        "line 4: parameters.model: must be below the models directory, got '/etc/shadow'",
    ),
    "outside by projector": (
        GOOD.format(name="x") + "mmproj: ../secret\n",
        "line 5: mmproj: must be below the models directory, got '../secret'",
    ),
    "a wrong type": (
        GOOD.format(name="x") + "context_size: big\n",
        'line 5: context_size: must be a whole number, got text ("big")',
    ),
    "a wrong type in a list": (
        GOOD.format(name="x") + "download_files:\n- filename: [a]\n  uri: u\n",
        'line 6: download_files[0].filename: must be text, got a list (["a"])',
    ),
    "a key given twice": (
        GOOD.format(name="x") + "f16: true\nf16: false\n",
        "has the key 'f16' twice, again in line 6",
    ),
    "a path with a zero byte": (
        GOOD.format(name="x").replace("x.gguf", '"a\\0b"'),
        "line 4: parameters.model: must be one line of up to 1024 characters",
    ),
}


@pytest.mark.parametrize(("content", "problem"), CASES.values(), ids=CASES)
async def test_a_file_that_cannot_be_used_is_told_and_hurts_no_other(
    models: Watched, content: str | bytes, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(models, "bad.yaml", content)
    began = time.process_time()
    text = (await problems(models))["bad.yaml"]

    assert text.startswith(problem)
    assert problem.endswith(" ") or text == problem
    assert time.process_time() - began < 1
    assert list(models.catalogue.models) == ["good"]
    [line] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert line.getMessage() == f"passed over: bad.yaml: {text}"


@pytest.mark.parametrize(
    "text",
    [
        "base: &base {backend: echo}\n<<: *base\nname: merged\nparameters: {model: x}\n",
        "\ufeff" + GOOD.format(name="merged"),
        "- " + GOOD.format(name="merged").replace("\n", "\n  "),
    ],
    ids=["merge", "byte order mark", "list"],
)
async def test_honest_yaml_is_read(models: Watched, text: str) -> None:
    write(models, "merged.yaml", text)
    assert await problems(models) == {}
    assert set(models.catalogue.models) == {"good", "merged"}


async def test_a_model_that_is_switched_off_is_not_there(models: Watched) -> None:
    write(models, "other.yaml", GOOD.format(name="other"))
    assert (await problems(models), set(models.catalogue.models)) == ({}, {"good", "other"})
    write(models, "other.yaml", GOOD.format(name="other") + "disabled: true\n")
    assert (await problems(models), set(models.catalogue.models)) == ({}, {"good"})


async def test_what_is_no_readable_file_is_told(models: Watched) -> None:
    directory = models.directory
    os.mkfifo(directory / "fifo.yaml")
    (directory / "folder.yaml").mkdir()
    (directory / "loop.yaml").symlink_to("loop.yaml")
    (directory / "gone.yaml").symlink_to("nowhere")
    (directory / "endless.yaml").symlink_to("/dev/zero")
    (directory / "unreadable.yaml").symlink_to("/proc/self/mem")  # even for root

    assert await problems(models) == {
        "endless.yaml": "is not a file",
        "fifo.yaml": "is not a file",
        "folder.yaml": "cannot be read: Is a directory",
        "gone.yaml": "cannot be read: No such file or directory",
        "loop.yaml": "cannot be read: Too many levels of symbolic links",
        "unreadable.yaml": "cannot be read: Input/output error",
    }
    assert list(models.catalogue.models) == ["good"]


async def test_other_files_and_hidden_ones_are_nobody_s_business(models: Watched) -> None:
    for name in (".draft.yaml", "weights.gguf", "notes.txt", "x.yaml.swp"):
        write(models, name, "[")
    assert await problems(models) == {}


async def test_a_directory_of_thousands_is_read_once_and_then_only_looked_at(models: Watched) -> None:
    for number in range(2000):
        write(models, f"m{number}.yaml", GOOD.format(name=f"m{number}"))
    assert await problems(models) == {}
    assert len(models.catalogue.models) == 2001
    first = models.catalogue.models["m7"]
    await models.scan()
    assert models.catalogue.models["m7"] is first


async def test_of_too_many_files_the_first_are_read(models: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models_module, "MOST_FILES", 3)
    for number in range(5):
        write(models, f"m{number}.yaml", GOOD.format(name=f"m{number}"))
    assert await problems(models) == {str(models.directory): "holds 6 files, of which the first 3 are read"}
    assert set(models.catalogue.models) == {"good", "m0", "m1"}


async def test_a_flood_of_problems_does_not_fill_the_log(models: Watched, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(300):
        write(models, f"bad{number}.yaml", "[")
    assert len(await problems(models)) == 300
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 101
    assert warnings[-1].getMessage() == "200 more were passed over"


async def test_a_directory_that_is_missing_or_no_directory_has_no_models(
    database: Database, bus: Bus, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    missing, file = [Watched(database, bus, tmp_path / name) for name in ("missing", "file")]
    assert (await problems(missing), missing.models.is_readable) == ({}, True)
    assert await problems(file) == {str(tmp_path / "file"): "cannot be read: Not a directory"}
    assert not file.models.is_readable, "nobody knows what it holds"


async def test_a_directory_that_goes_away_takes_no_model_with_it(
    models: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    assert await problems(models) == {}
    aside = models.directory.with_name("aside")
    models.directory.rename(aside)
    for _ in range(2):
        assert await problems(models) == {str(models.directory): "cannot be read: No such file or directory"}
        assert (list(models.catalogue.models), models.models.is_readable) == (["good"], True)
    assert sum(record.levelno == logging.WARNING for record in caplog.records) == 1
    aside.rename(models.directory)
    assert await problems(models) == {}
    assert (list(models.catalogue.models), models.models.is_readable) == (["good"], True)


async def test_a_file_is_read_again_when_it_changes(models: Watched) -> None:
    write(models, "good.yaml", "[")
    await models.scan()
    assert not models.catalogue.models
    write(models, "good.yaml", GOOD.format(name="better"))
    await models.scan()
    assert list(models.catalogue.models) == ["better"]
    (models.directory / "good.yaml").unlink()
    await models.scan()
    assert not models.catalogue.models
    assert not models.catalogue.problems


async def test_an_unknown_model_brings_suggestions(models: Watched) -> None:
    await models.scan()
    with pytest.raises(NotFound, match="the model 'god' does not exist; did you mean good\\?"):
        models.find("god")
    with pytest.raises(NotFound, match=r"the model 'zzz' does not exist; `corral models list` shows all$"):
        models.find("zzz")


@pytest.mark.parametrize("name", ["broken", "broken.yaml", "its name"])
async def test_a_problem_is_found_by_the_name_of_its_file_or_of_its_model(models: Watched, name: str) -> None:
    write(models, "broken.yaml", "name: its name\nbackend: echo\n")
    await models.scan()
    assert [one.problem for one in models.catalogue.problems_of(name)] == ["parameters.model: is missing"]
    assert models.catalogue.problems_of("good") == []


async def test_a_file_that_was_broken_keeps_its_model_as_it_was_until_it_is_mended_or_deleted(models: Watched) -> None:
    await models.scan()
    revision = models.revision_of("good")
    write(models, "good.yaml", "name: [good")

    for _ in range(2):
        assert "is not YAML" in (await problems(models))["good.yaml"]
        assert models.revision_of("good") == revision

    write(models, "good.yaml", GOOD.format(name="good") + "threads: 2\n")
    assert await problems(models) == {}
    assert models.revision_of("good") not in ("", revision)

    write(models, "good.yaml", "name: [good")
    assert await problems(models)
    (models.directory / "good.yaml").unlink()
    assert await problems(models) == {}
    assert models.revision_of("good") == ""


async def test_a_broken_files_model_gives_way_to_another_file_of_that_name(models: Watched) -> None:
    await models.scan()
    write(models, "good.yaml", "name: [good")
    write(models, "other.yaml", GOOD.format(name="good"))

    assert set(await problems(models)) == {"good.yaml"}
    assert models.find("good").source == "other.yaml"


async def test_a_second_file_with_a_known_name_is_passed_over_whatever_it_is_called(
    models: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    await models.scan()
    revision = models.revision_of("good")
    write(models, "a.yaml", GOOD.format(name="good") + "threads: 2\n")

    for _ in range(2):
        assert await problems(models) == {"a.yaml": "the name is taken by good.yaml, which was known first"}
        assert (models.find("good").source, models.revision_of("good")) == ("good.yaml", revision)
    assert [one.source for one in models.catalogue.problems_of("good")] == ["a.yaml"]
    assert [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING] == [
        "passed over: a.yaml: the name is taken by good.yaml, which was known first"
    ]

    write(models, "good.yaml", GOOD.format(name="good") + "threads: 3\n")
    assert set(await problems(models)) == {"a.yaml"}
    (models.directory / "good.yaml").unlink()
    assert await problems(models) == {}
    assert models.find("good").source == "a.yaml"


async def test_after_a_start_a_name_belongs_to_the_file_that_was_there_first(models: Watched) -> None:
    def is_later() -> bool:
        write(models, "a.yaml", GOOD.format(name="good"))
        first, second = [(models.directory / name).stat().st_ctime_ns for name in ("good.yaml", "a.yaml")]
        return second > first

    while not is_later():  # the disk's clock ticks coarsely
        pass
    assert set(await problems(models)) == {"a.yaml"}
    assert models.find("good").source == "good.yaml"


async def test_unknown_keys_are_told_with_their_lines_and_the_model_works(
    models: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    write(models, "good.yaml", GOOD.format(name="good") + "contxt_size: 8\n")
    text = "unknown key 'contxt_size', which has no effect; did you mean context_size?"

    for _ in range(2):
        assert await problems(models) == {}
        assert models.find("good").warnings == (f"line 5: {text}",)
    assert [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING] == [
        f"good.yaml: line 5: {text}"
    ]


async def test_lines_are_those_of_the_file_in_lists_and_below(models: Watched) -> None:
    text = "# two\n- name: one\n  backend: echo\n  parameters: {model: x}\n"
    text += "- name: two\n  backend: echo\n  parameters:\n    model: x\n    temprature: 1\n"
    write(models, "list.yaml", text)
    await models.scan()
    assert models.find("one").warnings == ()
    assert [one.partition(",")[0] for one in models.find("two").warnings] == [
        "line 9: unknown key 'parameters.temprature'"
    ]


@pytest.mark.parametrize("key", ["1", "true", "null"])
async def test_a_key_that_is_no_text_is_told_and_keeps_nobody_from_reading_the_models(
    models: Watched, key: str
) -> None:
    write(models, "odd.yaml", GOOD.format(name="odd") + f"template: {{{key}: x}}\n")
    await models.scan()
    assert set(models.catalogue.models) == {"good", "odd"}
    (warning,) = models.find("odd").warnings
    assert "unknown key 'template." in warning


async def test_a_key_that_others_refer_to_is_no_mistake_and_what_is_merged_is_looked_at(models: Watched) -> None:
    write(
        models,
        "good.yaml",
        "base: &base\n  backend: echo\n  thraeds: 2\n<<: *base\nname: good\nparameters: {model: x}\n",
    )
    await models.scan()
    assert models.find("good").warnings == (
        "line 3: unknown key 'thraeds', which has no effect; did you mean threads?",
    )


async def test_heads_of_new_weights_are_read_a_few_at_a_time(models: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory full of them keeps nobody waiting; sizes are known at once."""
    monkeypatch.setattr(models_module, "_MOST_READ", 2)
    for name in ("a", "b", "c"):
        write(models, f"{name}.gguf", gguf(**LLAMA))
        write(models, f"{name}.yaml", GOOD.format(name=name).replace("echo", "llama-cpp"))
    os.mkfifo(models.directory / "pipe.gguf")
    write(models, "pipe.yaml", GOOD.format(name="pipe").replace("echo", "llama-cpp"))

    await models.scan()

    sources = [models.models.needs_of(models.find(name)).source for name in ("a", "b", "c")]
    assert sources == ["GGUF metadata", "GGUF metadata", "file size"]
    await models.scan()
    assert models.models.needs_of(models.find("c")).source == "GGUF metadata"
    assert models.models.needs_of(models.find("pipe")).source == "not known"


async def test_the_parts_of_a_split_model_are_one(models: Watched) -> None:
    first, second = "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"
    write(models, first, gguf(**LLAMA, split__count=2))
    write(models, second, bytes(3_000_000))
    write(models, "m.yaml", f"name: m\nbackend: llama-cpp\nparameters: {{model: {first}}}\n")

    await models.scan()

    spec = models.find("m")
    assert models.models.size_of(spec) == (models.directory / first).stat().st_size + 3_000_000
    needs = models.models.needs_of(spec)
    assert (needs.source, needs.disk) == ("GGUF metadata", models.models.size_of(spec))
