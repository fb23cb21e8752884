"""Which galleries there are, and how this machine is looked at to choose from them."""

from pathlib import Path

import pytest

from corral.base.errors import SettingInvalid
from corral.galleries.config import GalleriesConfig
from corral.processes.local_backends import machine_config
from corral.processes.settings import gather
from corral.processes.settings_sources import resolve

LIST = '[{"name": "mine", "url": "https://example.org/i.yaml", "mirrors": ["file:///srv/i.yaml"]}]'


def test_by_default_there_is_our_own_and_localai_s() -> None:
    found = resolve(GalleriesConfig, gather({}, {}))
    assert [source.name for source in found.sources] == ["corral", "localai"]
    assert found.sources[1].urls == (
        "https://index.localai.io/backends",
        "github:mudler/LocalAI/backend/index.yaml@master",
    )


@pytest.mark.parametrize("name", ["CORRAL_BACKEND_GALLERIES", "LOCALAI_BACKEND_GALLERIES", "BACKEND_GALLERIES"])
def test_a_list_comes_from_any_of_its_variables(name: str) -> None:
    (source,) = resolve(GalleriesConfig, gather({}, {name: LIST})).sources
    assert (source.name, source.urls) == ("mine", ("https://example.org/i.yaml", "file:///srv/i.yaml"))


def test_models_have_galleries_of_their_own() -> None:
    assert [source.name for source in resolve(GalleriesConfig, gather({}, {})).model_sources] == ["corral", "localai"]
    for name in ("CORRAL_MODEL_GALLERIES", "LOCALAI_GALLERIES", "GALLERIES"):
        found = resolve(GalleriesConfig, gather({}, {name: LIST}))
        assert [source.name for source in found.model_sources] == ["mine"]
        assert [source.name for source in found.sources] == ["corral", "localai"]
    with pytest.raises(SettingInvalid, match=r"model_galleries: .* cannot be used; allowed is a JSON list"):
        resolve(GalleriesConfig, gather({"--model-galleries": "nonsense"}, {}))


def test_an_empty_list_is_no_gallery_at_all() -> None:
    assert resolve(GalleriesConfig, gather({}, {"CORRAL_BACKEND_GALLERIES": "[]"})).sources == ()


def test_a_file_may_write_tables(tmp_path: Path) -> None:
    file = tmp_path / "corral.toml"
    file.write_text('[[gallery.backend_galleries]]\nname = "mine"\nurl = "corral:builtin"\n')
    (source,) = resolve(GalleriesConfig, gather({"--config": str(file)}, {})).sources
    assert (source.name, source.url) == ("mine", "corral:builtin")


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "{}",
        '"text"',
        '[{"url": 1}]',
        '[{"name": "x"}]',
        '[{"name": "x", "url": "/srv/index.yaml"}]',
        '[{"name": "x", "url": "https://a/b", "mirrors": ["ftp://c"]}]',
        '[{"name": "a@b", "url": "https://a/b"}]',
        '[{"name": "x", "url": "https://a/b"}, {"name": "X", "url": "https://a/c"}]',
    ],
)
def test_what_is_no_list_of_galleries_is_refused(text: str) -> None:
    with pytest.raises(SettingInvalid, match=r"backend_galleries: .* cannot be used; allowed is a JSON list"):
        resolve(GalleriesConfig, gather({"--backend-galleries": text}, {}))


@pytest.mark.parametrize("name", ["CORRAL_BACKEND_GALLERIES", "LOCALAI_BACKEND_GALLERIES"])
def test_a_policy_that_cannot_be_used_is_told_with_its_field(name: str) -> None:
    text = '[{"name": "mine", "url": "https://a/b", "verification": {"issuer": "x", "identity_regex": "("}}]'
    with pytest.raises(SettingInvalid, match=r"backend_galleries: the gallery 'mine': verification\.identity_regex: "):
        resolve(GalleriesConfig, gather({}, {name: text}))


def test_nonsense_in_localai_s_variable_is_only_warned_about() -> None:
    sources = gather({}, {"LOCALAI_BACKEND_GALLERIES": "nonsense"})
    assert len(resolve(GalleriesConfig, sources).sources) == 2
    assert "going on with the next source" in sources.warnings[0]


@pytest.mark.parametrize("name", ["LOCALAI_BACKEND_GALLERIES", "LOCALAI_GALLERIES"])
def test_of_a_list_in_localai_s_variables_only_what_cannot_be_used_is_left_out(name: str) -> None:
    text = (
        '[{"name": "a", "url": "https://a/b"}, {"name": "A", "url": "https://c/d"}, {"name": "x\u202e", "url": "ftp://u:pw@e"},'
        ' {"name": "n", "url": 1}, 7, {"url": "https://f/g"}]'
    )
    sources = gather({}, {name: text})
    config = resolve(GalleriesConfig, sources)
    usable = config.sources if "BACKEND" in name else config.model_sources
    assert [source.url for source in usable] == ["https://a/b", "https://f/g"]
    (warning,) = sources.warnings
    assert warning.endswith(r"galleries that cannot be used are left out: 'A', 'x\u202e', 'n', number 5")


def test_a_list_without_a_gallery_that_can_be_used_brings_no_others() -> None:
    found = resolve(GalleriesConfig, gather({}, {"LOCALAI_BACKEND_GALLERIES": '[{"name": "a", "url": "/srv/i.yaml"}]'}))
    assert found.sources == ()


def test_a_login_is_neither_a_flag_nor_shown() -> None:
    text = '[{"name": "x", "url": "https://user:hidden@a/b"}]'
    with pytest.raises(SettingInvalid, match="carries a password") as caught:
        resolve(GalleriesConfig, gather({"--backend-galleries": text}, {}))
    assert "hidden" not in str(caught.value)
    found = resolve(GalleriesConfig, gather({}, {"CORRAL_BACKEND_GALLERIES": text}))
    assert "hidden" not in repr(found)
    bad = '[{"name": "x", "url": "ftp://user:hidden@a/b"}]'
    with pytest.raises(SettingInvalid, match="cannot be used") as caught:
        resolve(GalleriesConfig, gather({}, {"CORRAL_BACKEND_GALLERIES": bad}))
    assert "hidden" not in str(caught.value)


def test_copies_are_kept_where_a_user_s_caches_are() -> None:
    assert str(resolve(GalleriesConfig, gather({}, {"HOME": "/h"})).cache) == "/h/.cache/corral/galleries"
    stated = gather({}, {"HOME": "/h", "XDG_CACHE_HOME": "/c"})
    assert str(resolve(GalleriesConfig, stated).cache) == "/c/corral/galleries"


def test_this_machine_needs_no_frontend(tmp_path: Path) -> None:
    found = machine_config(gather({}, {"CORRAL_DATA": str(tmp_path), "CORRAL_CAPABILITY": "amd"}))
    assert found.backends == tmp_path / "backends"
    assert found.capability.forced == "amd"
