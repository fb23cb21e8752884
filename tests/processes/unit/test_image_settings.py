"""How images are fetched and what is asked of them."""

from pathlib import Path

import pytest

from corral.base.errors import SettingInvalid
from corral.oci.config import ImagesConfig
from corral.processes.configs import images_config
from corral.processes.settings import SigningSettings, backend_environment, gather
from corral.processes.settings_sources import resolve


def test_how_images_are_fetched() -> None:
    auths = '{"auths": {"quay.io": {"username": "me", "password": "hidden"}}}'
    images = {
        "HOME": "/home/someone",
        "https_proxy": "http://proxy:3128",
        "CORRAL_PLAIN_REGISTRIES": "registry.lan:5000, other.lan",
        "CORRAL_UNPACK_MAX_BYTES": "5GiB",
        "CORRAL_UNPACK_MAX_ENTRIES": "10",
        "CORRAL_UNPACK_MAX_RATIO": "20",
        "CORRAL_PULL_PARALLEL": "5",
        "CORRAL_PULL_NICENESS": "0",
        "CORRAL_KEEP_LAYERS": "true",
        "DOCKER_AUTH_CONFIG": auths,
    }
    config = images_config(gather({}, images))

    assert [credential.place for credential in config.credentials] == ["quay.io"]
    assert Path("/home/someone/.docker/config.json") in config.auth_files
    assert config.network.plain_hosts == ("registry.lan:5000", "other.lan")
    assert config.network.https_proxy == "http://proxy:3128"
    limits = config.limits
    assert (limits.total_bytes, limits.entries, limits.ratio) == (5 * 1024**3, 10, 20)
    assert (config.parallel, config.niceness, config.keep_layers) == (5, 0, True)
    assert "hidden" not in repr(config)
    assert "DOCKER_AUTH_CONFIG" not in backend_environment(images)


@pytest.mark.parametrize(
    "name", ["CORRAL_REQUIRE_BACKEND_INTEGRITY", "LOCALAI_REQUIRE_BACKEND_INTEGRITY", "REQUIRE_BACKEND_INTEGRITY"]
)
def test_what_is_asked_of_images(name: str, tmp_path: Path) -> None:
    (tmp_path / "root.json").write_text("{}")
    environment = {name: "true", "CORRAL_TRUSTED_ROOT_FILE": str(tmp_path / "root.json")}
    config = images_config(gather({}, environment))
    without = images_config(gather({}, {}))

    assert (config.require_integrity, config.trusted_root) == (True, tmp_path / "root.json")
    assert (without.require_integrity, without.trusted_root) == (False, None)


def test_the_password_of_a_signing_key_is_not_handed_on() -> None:
    environment = {"CORRAL_SIGNING_PASSWORD": "open sesame"}

    assert resolve(SigningSettings, gather({}, environment)).password == "open sesame"
    assert "open sesame" not in backend_environment(environment).values()
    with pytest.raises(SettingInvalid, match="password") as caught:
        resolve(SigningSettings, gather({}, {"COSIGN_PASSWORD": "hidden\x07"}))
    assert "hidden" not in str(caught.value)


def test_a_file_with_logins_stands_for_the_usual_places(tmp_path: Path) -> None:
    (tmp_path / "auth.json").write_text("{}")
    environment = {"CORRAL_REGISTRY_AUTH_FILE": str(tmp_path / "auth.json")}
    config = images_config(gather({}, environment))

    assert config.auth_files == (tmp_path / "auth.json",)


@pytest.mark.parametrize("value", ["user:secret", "{}", '{"auths": {"x": {"auth": "%secret"}}}'])
def test_logins_that_cannot_be_read_are_refused_and_not_shown(value: str) -> None:
    with pytest.raises(SettingInvalid, match="registry_auth") as caught:
        resolve(ImagesConfig, gather({}, {"CORRAL_REGISTRY_AUTH": value}))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", ["https://registry.lan", "a b", ",", "host:port"])
def test_hosts_that_are_none_are_refused(value: str) -> None:
    with pytest.raises(SettingInvalid, match="plain_registries"):
        resolve(ImagesConfig, gather({}, {"CORRAL_PLAIN_REGISTRIES": value}))
