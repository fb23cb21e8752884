"""`tools/make_ui.py`: how it notices that the built page is old, without building it each time."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


class Workshop:
    """A checkout with a page whose build is a copy of its source."""

    def __init__(self, tool: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tool = tool
        self.builds = 0
        self.source, self.built = folder / "ui", folder / "built"
        for place in (self.source / "src/api", self.source / "node_modules", self.built, folder / ".build"):
            place.mkdir(parents=True)
        constants = {"ROOT": folder, "SOURCE": self.source, "BUILT": self.built}
        for name, value in {**constants, "TYPES": self.source / "src/api/schema.gen.ts"}.items():
            monkeypatch.setattr(tool, name, value)
        monkeypatch.setattr(tool, "install", lambda: None)
        monkeypatch.setattr(tool, "judge", lambda: None)
        monkeypatch.setattr(tool, "build", self.build)
        monkeypatch.delenv("CI", raising=False)
        tool.TYPES.write_text(tool.TYPES_HEAD.format(digest=tool.digest_of_description()))
        (self.source / "page.ts").write_text("page")
        self.build(self.built)
        tool.write_record()
        self.builds = 0

    def build(self, target: Path) -> None:
        self.builds += 1
        target.mkdir(exist_ok=True)
        (target / "page.js").write_text((self.source / "page.ts").read_text().partition("//")[0])


@pytest.fixture
def workshop(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    monkeypatch.syspath_prepend(root / "tools")
    spec = importlib.util.spec_from_file_location("corral_tools_make_ui", root / "tools" / "make_ui.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, tool)
    spec.loader.exec_module(tool)
    return Workshop(tool, tmp_path, monkeypatch)


def test_nothing_is_built_while_the_source_is_what_was_built(workshop: Workshop) -> None:
    assert workshop.tool.check() == 0
    assert workshop.builds == 0


def test_ci_always_builds(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")

    assert workshop.tool.check() == 0
    assert workshop.builds == 1


def test_a_built_file_that_was_edited_is_noticed(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    (workshop.built / "page.js").write_text("edited")

    assert workshop.tool.check() == 1
    assert capsys.readouterr().out == "built is not what was built: run `make ui`\n"


def test_a_source_that_builds_something_else_is_noticed(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    (workshop.source / "page.ts").write_text("another page")

    assert workshop.tool.check() == 1
    assert capsys.readouterr().out == "built does not fit ui/: run `make ui`\n"


def test_a_source_that_builds_the_same_is_fine(workshop: Workshop) -> None:
    (workshop.source / "page.ts").write_text("page// with a comment")

    assert workshop.tool.check() == 0
    assert workshop.builds == 1


def test_packages_are_not_part_of_the_source(workshop: Workshop) -> None:
    (workshop.source / "node_modules" / "package.js").write_text("x")

    assert workshop.tool.check() == 0
    assert workshop.builds == 0


def test_types_of_other_routes_are_noticed(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    workshop.tool.TYPES.write_text(workshop.tool.TYPES_HEAD.format(digest="0" * 16))

    assert workshop.tool.check() == 1
    assert "schema.gen.ts does not fit the routes" in capsys.readouterr().out
