"""The reference is made of the code: nothing in it may be without a description. `make check` tells what is stale."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

from corral.base.settings import settings_of
from corral.cli.main import cli
from corral.frontend.record.decide import EventKind
from corral.frontend.routes import ROUTES
from corral.processes.exit_codes import MEANINGS, ExitCode
from corral.processes.settings import all_sections

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def make_docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "tools" / "make_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_docs"] = module
    spec.loader.exec_module(module)
    return module


def test_a_page_that_differs_is_noticed_and_written_anew(make_docs: ModuleType, tmp_path: Path) -> None:
    assert set(make_docs.differing(tmp_path)) == set(make_docs.PAGES)
    (tmp_path / "exit-codes.md").write_text(make_docs.exit_codes_page(), encoding="utf-8")
    assert "exit-codes.md" not in make_docs.differing(tmp_path)


def test_every_setting_is_described() -> None:
    text = (FOLDER / "settings.md").read_text(encoding="utf-8")
    for group in all_sections():
        for setting in settings_of(group):
            assert setting.meaning
            assert f"### `{setting.section}.{setting.name}`" in text


def test_every_command_and_option_is_described(make_docs: ModuleType) -> None:
    text = (FOLDER / "cli.md").read_text(encoding="utf-8")
    for path, command in make_docs.commands(cli, "corral"):
        assert command.help, f"{path} has no docstring"
        assert f"## `{path}`" in text
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.help, f"{path} {parameter.opts[0]} has no help"


def test_every_route_is_described_with_its_answers() -> None:
    text = (FOLDER / "routes.md").read_text(encoding="utf-8")
    for route in ROUTES:
        assert route.summary, f"{route.method} {route.path} has no summary"
        assert route.codes, f"{route.method} {route.path} names no answer"
        assert f"`{route.method} {route.path}`" in text


def test_every_kind_of_event_is_listed() -> None:
    text = (FOLDER / "events.md").read_text(encoding="utf-8")
    assert [kind.value for kind in EventKind if f"`{kind.value}`" not in text] == []


def test_every_exit_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(ExitCode)


def test_every_log_event_has_a_stable_name(make_docs: ModuleType) -> None:
    """Lower case words with dots, so that people can search for them."""
    names = {event.name for event in make_docs.log_events()}
    assert names
    assert [name for name in names if not all(part.isidentifier() and part.islower() for part in name.split("."))] == []
