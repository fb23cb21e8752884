"""Which addresses and URLs a node may name: those on its registered host, however that is spelled."""

import pytest

from corral.frontend.nodes.decide.reports import NodeContact, contact_of
from tests.kit.clock import START
from tests.kit.samples import a_node


def contact(address: str) -> NodeContact:
    return NodeContact(name="w", is_approved=True, address=address, http_address="", joined_at=START)


@pytest.mark.parametrize(
    ("registered", "told", "expected"),
    [
        ("10.0.0.5:50051", "10.0.0.5:50052", True),
        ("gpu-1:50051", "GPU-1.:7000", True),
        ("127.0.0.1:50051", "localhost:7000", True),
        ("localhost:50051", "127.0.0.1:7000", True),
        (":50051", "127.0.0.1:7000", True),
        (":50051", ":7000", True),
        ("127.0.0.3:50051", "127.0.0.3:7000", True),
        ("[fd00::5]:50051", "[fd00:0:0::5]:7000", True),
        ("[::ffff:10.0.0.5]:50051", "10.0.0.5:7000", True),
        ("0.0.0.0:50051", "0.0.0.0:7000", True),
        ("[fe80::5%eth0]:50051", "[FE80:0::5%eth0]:7000", True),
        ("[fe80::5%eth0]:50051", "[fe80::5%eth1]:7000", False),
        ("[fe80::5%eth0]:50051", "[fe80::5]:7000", False),
        ("[fe80::5%eth0]:50051", "[fe80::5%eth0@evil.example]:7000", False),
        ("10.0.0.5:50051", "10.0.0.6:50051", False),
        ("10.0.0.5:50051", "127.0.0.1:50051", False),
        ("127.0.0.3:50051", "127.0.0.1:7000", False),
        ("gpu-1:50051", "gpu-1.evil.example:7000", False),
        ("gpu-1:50051", "10.0.0.5:7000", False),
        ("10.0.0.5:50051", "10.0.0.5", False),
        ("10.0.0.5:50051", "10.0.0.5:0", False),
        ("10.0.0.5:50051", "10.0.0.5:65536", False),
        ("10.0.0.5:50051", "x@10.0.0.5:80", False),
        ("10.0.0.5:50051", "10.0.0.5:80 ", False),
        ("10.0.0.5:50051", "unix:///run/x.sock", False),
        ("10.0.0.5:50051", "", False),
        ("nonsense", "nonsense:80", False),
    ],
)
def test_an_address_is_accepted_on_the_registered_host_only(registered: str, told: str, expected: bool) -> None:
    assert contact(registered).has_address(told) is expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://10.0.0.5:7001", True),
        ("https://10.0.0.5:7001/", True),
        ("http://10.0.0.5:7001/v1/chat", True),
        ("http://10.0.0.6:7001", False),
        ("http://10.0.0.5", False),
        ("http://10.0.0.5:7001@evil.example:80", False),
        ("http://evil.example:80/10.0.0.5:7001", False),
        ("http://evil.example:80\\@10.0.0.5:7001", False),
        ("http://10.0.0.5:7001?to=http://evil.example", False),
        ("http://10.0.0.5:7001#@evil.example", False),
        ("http://10.0.0.5:7001\r\nHost: evil.example", False),
        ("ftp://10.0.0.5:21", False),
        ("file:///etc/passwd", False),
        ("", False),
    ],
)
def test_a_url_is_accepted_on_the_registered_host_only(url: str, expected: bool) -> None:
    assert contact("10.0.0.5:50051").has_url(url) is expected


def test_workers_list_their_processes_by_loopback_addresses() -> None:
    node = contact("10.0.0.5:50051")

    assert node.has_own_address("127.0.0.1:7000")
    assert node.has_own_address("127.0.0.3:7000")
    assert node.has_own_address("[::1]:7000")
    assert node.has_own_address("10.0.0.5:7000")
    assert not node.has_own_address("10.0.0.6:7000")


@pytest.mark.parametrize(
    ("registered", "told", "dialled"),
    [
        ("worker-1", "127.0.0.1:50051", "worker-1:50051"),
        ("10.0.0.5", "localhost:50052", "10.0.0.5:50052"),
        ("[fd00::5]", "[::1]:50051", "[fd00::5]:50051"),
        ("worker-1:50051", "worker-1:50052", "worker-1:50052"),
        ("worker-1:50051", "127.0.0.1:50051", None),
        ("worker-1", "10.0.0.9:50051", None),
        ("worker-1", "127.0.0.1:0", None),
        ("worker-1", "127.0.0.1:99999", None),
        ("worker-1/x@y", "127.0.0.1:50051", None),
    ],
)
def test_loopback_stands_for_the_host_of_a_node_that_registered_without_a_port(
    registered: str, told: str, dialled: str | None
) -> None:
    assert contact(registered).dialled(told) == dialled


def test_an_address_without_a_host_means_this_machine() -> None:
    """As for Go: a LocalAI worker whose LOCALAI_ADDR is `:50051` registers that, and answers with the like."""
    contact = contact_of(a_node(address=":50051", http_address=":50050"))

    assert contact.http_address == "localhost:50050"
    assert contact.dialled(":50052") == "localhost:50052"
    assert contact_of(a_node(address=":50051", http_address="")).http_address == ""
