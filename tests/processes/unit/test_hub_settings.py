"""Hubs of models are found, with their tokens, by our own names of settings and by those that everybody knows."""

import pytest

from corral.base.errors import SettingInvalid
from corral.hubs.config import HubsConfig
from corral.oci.limits import proxy_for
from corral.processes.configs import hubs_config, images_config
from corral.processes.settings import gather


def config(**environment: str) -> HubsConfig:
    sources = gather({}, environment)
    return hubs_config(sources, images_config(sources))


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, "https://huggingface.co"),
        ({"HF_ENDPOINT": "https://hub.lan/"}, "https://hub.lan"),
        ({"HF_ENDPOINT": "https://hub.lan", "HF_MIRROR": "mirror.lan/hf"}, "https://mirror.lan/hf"),
        ({"HF_ENDPOINT": "https://hub.lan", "HF": "mirror.lan/hf"}, "https://mirror.lan/hf"),
        ({"HF_MIRROR": "mirror.lan", "CORRAL_HF_URL": "http://own.lan:81"}, "http://own.lan:81"),
    ],
)
def test_a_mirror_is_named_as_in_other_programs(environment: dict[str, str], url: str) -> None:
    assert config(**environment).hf_url == url


def test_tokens_are_taken_from_the_usual_variables_and_never_shown() -> None:
    made = config(HF_TOKEN="hf_secret", CORRAL_OLLAMA_TOKEN="me:secret", CORRAL_OCI_TOKEN="secret")
    assert (made.hf_token, made.ollama_token, made.oci_token) == ("hf_secret", "me:secret", "secret")
    assert "secret" not in repr(made)


def test_a_url_with_a_login_is_refused_without_repeating_it() -> None:
    with pytest.raises(SettingInvalid) as caught:
        config(HF_ENDPOINT="https://me:secret@hub.lan")
    assert "secret" not in str(caught.value)


def test_a_mirror_without_tls_may_be_asked_so() -> None:
    made = config(CORRAL_OLLAMA_URL="http://registry.lan:5000/x", https_proxy="http://proxy.lan:1")
    assert made.network.plain_hosts == ("registry.lan:5000",)
    assert proxy_for("https://huggingface.co/x", made.network) == "http://proxy.lan:1"
