"""Which hosts are asked how, and what fits a machine."""

import pytest

from corral.oci.errors import PlatformMissing, SourceInvalid
from corral.oci.http import advice_without_tls
from corral.oci.limits import Network, check_url, names_loopback, proxy_for, scheme_of, with_proxies
from corral.oci.manifests import Descriptor, ImagePlatform, Index, best_platform, choose_image, this_platform

PLAIN = Network(plain_hosts=("registry.lan", "other.lan:5000"))


@pytest.mark.parametrize(
    ("host", "scheme"),
    [
        ("quay.io", "https"),
        ("localhost", "http"),
        ("localhost:5000", "http"),
        ("127.0.0.1:5000", "http"),
        ("127.9.9.9", "http"),
        ("[::1]:5000", "http"),
        ("10.0.0.1:5000", "https"),
        ("localhost.example", "https"),
        ("127.0.0.1.example", "https"),
        ("registry.lan", "http"),
        ("registry.lan:5000", "http"),
        ("other.lan:5000", "http"),
        ("other.lan:5001", "https"),
    ],
)
def test_tls_unless_it_is_loopback_or_allowed(host: str, scheme: str) -> None:
    assert scheme_of(host, PLAIN) == scheme


@pytest.mark.parametrize("url", ["http://quay.io/x", "http://user@localhost.example/x", "ftp://localhost/x", "x"])
def test_urls_that_are_not_asked(url: str) -> None:
    with pytest.raises(SourceInvalid):
        check_url(url, PLAIN)


def test_the_sentence_names_the_setting() -> None:
    with pytest.raises(SourceInvalid, match=r"allow it with images\.plain_registries"):
        check_url("http://quay.io/x", Network())


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("https://quay.io/x", "http://secure:3128"),
        ("http://registry.lan/x", "http://plain:3128"),
        ("https://localhost/x", None),
        ("https://127.0.0.1:5000/x", None),
        ("https://inside.example/x", None),
        ("https://deep.inside.example/x", None),
        ("https://notinside.example/x", "http://secure:3128"),
        ("https://10.1.2.3/x", None),
        ("https://dotted.lan/x", None),
        ("https://a.dotted.lan/x", None),
    ],
)
def test_proxies(url: str, proxy: str | None) -> None:
    network = Network(
        http_proxy="http://plain:3128",
        https_proxy="http://secure:3128",
        no_proxy="inside.example:443, 10.0.0.0/8,, .dotted.lan",
    )

    assert proxy_for(url, network) == proxy


def test_a_star_means_no_proxy_at_all() -> None:
    assert proxy_for("https://quay.io", Network(https_proxy="http://p", no_proxy="*")) is None


def test_proxies_of_an_environment() -> None:
    environment = {"HTTPS_PROXY": "http://large", "https_proxy": "http://small", "NO_PROXY": "x"}

    assert with_proxies(Network(), environment) == Network(https_proxy="http://small", no_proxy="x")


def platforms(*texts: str) -> list[ImagePlatform]:
    return [
        ImagePlatform(**dict(zip(("os", "architecture", "variant"), text.split("/"), strict=False))) for text in texts
    ]


@pytest.mark.parametrize(
    ("wanted", "offered", "chosen"),
    [
        ("linux/amd64", ["linux/arm64", "linux/amd64"], 1),
        ("linux/arm64", ["linux/arm64/v8"], 0),
        ("linux/arm64/v8", ["linux/amd64", "linux/arm64"], 1),
        ("linux/arm/v7", ["linux/arm/v5", "linux/arm/v6", "linux/arm/v7", "linux/arm/v8"], 2),
        ("linux/arm/v6", ["linux/arm/v5", "linux/arm/v7"], 0),
        ("linux/arm", ["linux/arm/v7", "linux/arm/v6"], 0),
        ("linux/amd64", ["linux/amd64/v3", "linux/amd64"], 1),
        ("linux/amd64/v3", ["linux/amd64", "linux/amd64/v2", "linux/amd64/v4"], 1),
        ("linux/amd64", ["linux/amd64", "linux/amd64"], 0),
        ("linux/amd64", ["darwin/amd64", "linux/amd64/v2"], None),
        ("darwin/arm64", ["linux/arm64"], None),
    ],
)
def test_the_best_that_the_machine_runs(wanted: str, offered: list[str], chosen: int | None) -> None:
    (machine,) = platforms(wanted)
    assert best_platform(platforms(*offered), machine) == chosen
    if chosen is None:
        entries = [Descriptor(digest="sha256:" + "0" * 64, size=1, platform=one) for one in platforms(*offered)]
        with pytest.raises(PlatformMissing, match=f"no image for {machine}; there are images for {offered[0]}"):
            choose_image(Index(manifests=entries), machine, name="x")


def test_an_entry_without_a_platform_is_taken_for_the_usual_one() -> None:
    assert best_platform([ImagePlatform(architecture="arm64"), None], ImagePlatform(architecture="amd64")) == 1


def test_this_machine_has_a_platform() -> None:
    assert this_platform().os in ("linux", "darwin")
    assert this_platform().architecture not in ("", "x86_64", "aarch64")


@pytest.mark.parametrize("host", ["10.0.0.5:5000", "192.168.1.9", "[fd00::5]:5000", "registry:5000"])
def test_a_registry_of_the_own_network_without_tls_is_told_the_value_to_set(host: str) -> None:
    assert f"CORRAL_PLAIN_REGISTRIES={host})" in advice_without_tls(host)


@pytest.mark.parametrize("host", ["ghcr.io", "1.1.1.1:443", "registry.example:5000"])
def test_for_registries_of_the_internet_nobody_is_advised_to_do_without_tls(host: str) -> None:
    assert advice_without_tls(host) == ""


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:9200/x.gguf", True),
        (" HTTP://LocalHost/x.gguf", True),
        ("http://user@[::1]:1/x", True),
        ("https://127.9.9.9/x", True),
        ("http://10.0.0.1/x", False),
        ("https://localhost.example/x", False),
        ("oci://localhost:5000/a/b:1", True),
        (" OCI://[::1]:5000/a/b", True),
        ("ollama://127.0.0.1:5000/a/b:1", True),
        ("ollama://localhost:5000/a/b", True),
        ("oci://registry.lan:5000/localhost/b", False),
        ("ollama://gemma:2b", False),
        ("hf://localhost/x", False),
        ("/127.0.0.1/x", False),
        ("http://[", False),
        ("model-of-a-gallery", False),
    ],
)
def test_which_urls_name_this_machine_by_its_loopback(url: str, expected: bool) -> None:
    assert names_loopback(url) is expected


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1", "127.0.0.1.", "localhost.", "0.0.0.0", "[::]"])
def test_no_other_spelling_of_loopback_is_asked_over_plain_http(host: str) -> None:
    with pytest.raises(SourceInvalid, match="plain_registries"):
        check_url(f"http://{host}/x", Network())
