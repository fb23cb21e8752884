"""The address rules: which source wins, what is refused, and how it is written."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.base.errors import SettingInvalid
from corral.worker.membership.addresses import (
    AddressConfig,
    HostPort,
    advertise_address,
    advertise_http_address,
    base_port,
    decide,
    is_wildcard,
    local_host,
    max_port,
    parse_host_port,
)

NOTHING = AddressConfig(serve_addr="")


@pytest.mark.parametrize(
    ("addr", "serve_addr", "expected"),
    [
        ("", "", 50051),
        ("10.0.0.1:6000", "0.0.0.0:7000", 6000),
        ("", "0.0.0.0:7000", 7000),
        (":6000", "", 6000),
        ("[fd00::5]:6000", "", 6000),
        ("10.0.0.1", "0.0.0.0:7000", 7000),
        ("10.0.0.1:", "0.0.0.0:7000", 7000),
        ("10.0.0.1:grpc", "0.0.0.0:7000", 7000),
        ("10.0.0.1:-1", "0.0.0.0:7000", 7000),
        ("10.0.0.1:0", "0.0.0.0:7000", 7000),
        ("10.0.0.1:65536", "0.0.0.0:7000", 7000),
        ("fd00::5:6000", "0.0.0.0:7000", 7000),
        ("10.0.0.1:65535", "", 65535),
        ("nonsense", "nonsense", 50051),
        ("", "0.0.0.0:99999", 50051),
    ],
)
def test_the_base_port_comes_from_the_first_usable_source(addr: str, serve_addr: str, expected: int) -> None:
    assert base_port(addr, serve_addr) == expected


@given(addr=st.text(max_size=40), serve_addr=st.text(max_size=40))
def test_there_is_always_a_usable_base_port(addr: str, serve_addr: str) -> None:
    assert 1 <= base_port(addr, serve_addr) <= 65535


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [(0, 65535), (-5, 65535), (50050, 65535), (50051, 50051), (50099, 50099), (65535, 65535), (65536, 65535)],
)
def test_a_port_limit_that_leaves_no_port_is_no_limit(wanted: int, expected: int) -> None:
    assert max_port(wanted, 50051) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (AddressConfig(), "box:50051"),
        (AddressConfig(serve_addr="0.0.0.0:7000"), "box:7000"),
        (AddressConfig(addr="10.0.0.1:6000"), "10.0.0.1:6000"),
        (AddressConfig(addr="10.0.0.1:6000", advertise_addr="gate.example:9000"), "gate.example:9000"),
        (AddressConfig(addr="[fd00::5]:6000"), "[fd00::5]:6000"),
    ],
)
def test_the_advertised_address_is_the_most_explicit_one(config: AddressConfig, expected: str) -> None:
    assert advertise_address(config, "box") == expected


def test_a_machine_without_a_name_is_localhost() -> None:
    assert advertise_address(NOTHING, "") == "localhost:50051"


def test_an_ipv6_address_as_host_name_is_bracketed() -> None:
    assert advertise_address(NOTHING, "fd00::5") == "[fd00::5]:50051"


EVERY, EVERY_V6 = "0.0.0.0", "::"


@pytest.mark.parametrize(
    ("config", "http", "backends"),
    [
        # Nothing on loopback was named: the worker is there for other machines.
        (AddressConfig(), f"{EVERY}:50050", EVERY),
        (AddressConfig(addr="10.0.0.1:6000"), f"{EVERY}:5999", EVERY),
        (AddressConfig(addr=":6000"), f"{EVERY}:5999", EVERY),
        (AddressConfig(addr="box:6000"), f"{EVERY}:5999", EVERY),
        (AddressConfig(addr="127.example:6000"), f"{EVERY}:5999", EVERY),
        (AddressConfig(advertise_addr="10.0.0.1:6000"), f"{EVERY}:50050", EVERY),
        (AddressConfig(addr="[fd00::5]:6000"), "[::]:5999", EVERY_V6),
        (AddressConfig(addr="10.0.0.1:6000", advertise_addr="[fd00::5]:6000"), "[::]:5999", EVERY_V6),
        (AddressConfig(advertise_http_addr="[fd00::5]:80"), "[::]:50050", EVERY),
        # An address on loopback was named: that one, exactly.
        (AddressConfig(addr="127.0.0.1:6000"), "127.0.0.1:5999", "127.0.0.1"),
        (AddressConfig(addr="127.0.0.3:6000"), "127.0.0.3:5999", "127.0.0.3"),
        (AddressConfig(addr="localhost:6000"), "127.0.0.1:5999", "127.0.0.1"),
        (AddressConfig(addr="[::1]:6000"), "[::1]:5999", "::1"),
        (AddressConfig(addr="[::ffff:127.0.0.3]:6000"), "127.0.0.3:5999", "127.0.0.3"),
        (AddressConfig(addr="[::ffff:10.0.0.1]:6000"), "[::]:5999", EVERY_V6),
        (AddressConfig(advertise_addr="127.0.0.3:6000"), "127.0.0.3:50050", "127.0.0.3"),
        (AddressConfig(serve_addr="127.0.0.1:6000"), "127.0.0.1:5999", "127.0.0.1"),
        (AddressConfig(addr="10.0.0.1:6000", advertise_addr="127.0.0.1:6000"), "127.0.0.1:5999", "127.0.0.1"),
        (AddressConfig(addr="127.0.0.1:6000", advertise_addr="127.0.0.3:6000"), "127.0.0.3:5999", "127.0.0.3"),
        # A loopback address behind a tunnel or a proxy, which others know by another one.
        (AddressConfig(addr="127.0.0.1:6000", advertise_addr="gate.example:9000"), "127.0.0.1:5999", "127.0.0.1"),
        (AddressConfig(addr="10.0.0.1:6000", advertise_http_addr="127.0.0.1:80"), "127.0.0.1:5999", EVERY),
        # What is said of the HTTP server holds for it alone.
        (AddressConfig(http_addr="127.0.0.1:8000"), "127.0.0.1:8000", EVERY),
        (AddressConfig(addr="127.0.0.1:6000", http_addr="0.0.0.0:8000"), "0.0.0.0:8000", "127.0.0.1"),
        (AddressConfig(http_addr=":8000"), ":8000", EVERY),
        (AddressConfig(http_addr="[::1]:8000"), "[::1]:8000", EVERY),
    ],
)
def test_one_rule_says_where_a_worker_and_its_backends_listen(config: AddressConfig, http: str, backends: str) -> None:
    decided = decide(config, "box")

    assert (str(decided.http_bind), decided.backend_bind) == (http, backends)


def test_a_worker_that_serves_on_loopback_only_says_so() -> None:
    decided = decide(AddressConfig(serve_addr="127.0.0.1:6000"), "box")

    assert (decided.advertise, decided.advertise_http) == ("127.0.0.1:6000", "127.0.0.1:5999")


@pytest.mark.parametrize(
    ("bound", "dialled"), [("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("127.0.0.3", "127.0.0.3"), ("::1", "::1")]
)
def test_a_worker_dials_its_backends_where_they_listen(bound: str, dialled: str) -> None:
    assert local_host(bound) == dialled


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (AddressConfig(), "box:50050"),
        (AddressConfig(addr="10.0.0.1:6000"), "10.0.0.1:5999"),
        (AddressConfig(addr="[fd00::5]:6000"), "[fd00::5]:5999"),
        (AddressConfig(addr=":6000"), "localhost:5999"),
        (AddressConfig(addr="10.0.0.1:6000", advertise_addr="gate.example:9000"), "gate.example:5999"),
        (AddressConfig(advertise_http_addr="gate.example:80"), "gate.example:80"),
        (AddressConfig(http_addr="127.0.0.1:8000"), "box:50050"),
    ],
)
def test_the_advertised_http_address_follows_the_host_and_the_base_port(config: AddressConfig, expected: str) -> None:
    assert advertise_http_address(config, "box") == expected


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        (AddressConfig(http_addr="8000"), "http_address"),
        (AddressConfig(http_addr="127.0.0.1"), "http_address"),
        (AddressConfig(http_addr="127.0.0.1:0"), "http_address"),
        (AddressConfig(http_addr="127.0.0.1:70000"), "http_address"),
        (AddressConfig(http_addr="::1:8000"), "http_address"),
        (AddressConfig(advertise_http_addr=":80"), "advertise_http_address"),
        (AddressConfig(advertise_http_addr="gate.example"), "advertise_http_address"),
        (AddressConfig(addr="10.0.0.1"), "address"),
        (AddressConfig(advertise_addr="gate.example"), "advertise_address"),
        (AddressConfig(addr="10.0.0.1:1"), "address"),
        (AddressConfig(serve_addr="0.0.0.0:1"), "serve_address"),
    ],
)
def test_an_address_that_makes_no_sense_is_refused_by_name(config: AddressConfig, setting: str) -> None:
    with pytest.raises(SettingInvalid) as refusal:
        decide(config, "box")
    assert refusal.value.field == setting


def test_base_port_1_is_fine_when_http_does_not_need_the_port_below() -> None:
    config = AddressConfig(addr="10.0.0.1:1", http_addr="0.0.0.0:8000")
    with pytest.raises(SettingInvalid):
        decide(config, "box")

    decided = decide(replace(config, advertise_http_addr="10.0.0.1:8000"), "box")

    assert decided.base_port == 1
    assert decided.http_bind == HostPort("0.0.0.0", 8000)


def test_everything_is_decided_together() -> None:
    decided = decide(AddressConfig(addr="127.0.0.3:22301", grpc_max_port=22400), "box")

    assert decided.base_port == 22301
    assert decided.max_port == 22400
    assert decided.advertise == "127.0.0.3:22301"
    assert decided.http_bind == HostPort("127.0.0.3", 22300)
    assert decided.advertise_http == "127.0.0.3:22300"


@given(
    host=st.one_of(st.from_regex(r"[a-z0-9.-]{1,40}", fullmatch=True), st.ip_addresses().map(str)),
    port=st.integers(min_value=1, max_value=65535),
)
def test_what_is_written_can_be_read_back(host: str, port: int) -> None:
    address = HostPort(host, port)
    assert parse_host_port(str(address)) == address


@pytest.mark.parametrize(
    ("address", "expected"),
    [("0.0.0.0:1", True), ("[::]:1", True), (":1", True), ("10.0.0.1:1", False), ("box:1", False)],
)
def test_an_address_without_a_machine_is_a_wildcard(address: str, expected: bool) -> None:
    assert is_wildcard(address) is expected
