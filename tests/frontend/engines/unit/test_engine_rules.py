"""Which engines are allowed, what looks at them mean, and how gateways rank them."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.base.errors import InvalidInput
from corral.base.own_network import forbidden_address, is_private_address, is_this_machine, plain_host
from corral.frontend.engines.decide import (
    ASKED,
    DOWN_AFTER,
    EngineLook,
    EngineObservation,
    EngineState,
    ExternalEngine,
    after_failed_request,
    after_look,
    checked,
    rank_of,
    share_of,
)
from corral.frontend.engines.entries import entries_of
from corral.wire.view import ModelEntry
from tests.kit.clock import START

UP = EngineLook(state=EngineState.UP)
DOWN = EngineLook(state=EngineState.DOWN, reason="connection refused")
DENIED = EngineLook(state=EngineState.MISCONFIGURED, reason="it does not take its key (401)")
SECOND = timedelta(seconds=1)


def engine(**changes: Any) -> ExternalEngine:
    base = ExternalEngine(
        id="e1",
        model="m",
        name="desk",
        url="http://10.0.0.9:8000/v1",
        remote_model="m",
        uses=("chat", "completion"),
        created_at=START,
        created_by="me",
        changed_at=START,
        changed_by="me",
    )
    return replace(base, **changes)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("http://10.0.0.9:8000", "http://10.0.0.9:8000/v1"),
        ("http://10.0.0.9:8000/", "http://10.0.0.9:8000/v1"),
        ("https://API.Example.com/v1/", "https://api.example.com/v1"),
        ("https://api.example.com:443/openai/v1", "https://api.example.com/openai/v1"),
        ("http://[fd00::7]:80/v1", "http://[fd00::7]/v1"),
        ("http://127.0.0.1:11434/v1", "http://127.0.0.1:11434/v1"),
        ("http://desk.local:11434", "http://desk.local:11434/v1"),
    ],
)
def test_a_url_is_stored_as_it_is_asked(given: str, stored: str) -> None:
    assert checked(engine(url=given)).url == stored


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"url": "ftp://host/v1"}, "url", "must be http://HOST:PORT or https"),
        ({"url": "host:80"}, "url", "must be http"),
        ({"url": "http://user:pass@host/v1"}, "url", "must not have a user"),
        ({"url": "http://user@host/v1"}, "url", "must not have a user"),
        ({"url": "http://host/v1?key=x"}, "url", "query"),
        ({"url": "http://host/v1#x"}, "url", "fragment"),
        ({"url": "http://host:99999/v1"}, "url", "cannot be read"),
        ({"url": "http://host:0/v1"}, "url", "must be http"),
        ({"url": "http://ho st/v1"}, "url", "no blanks"),
        ({"url": "http:\\\\host/v1"}, "url", "no blanks"),
        ({"url": "http://host/v1/../admin"}, "url", "not plain"),
        ({"url": "http:///v1"}, "url", "no host"),
        ({"url": "http://höst/v1"}, "url", "ASCII"),
        ({"url": "http://169.254.169.254/v1"}, "url", "link-local"),
        ({"url": "http://[fe80::1]/v1"}, "url", "link-local"),
        ({"url": "http://[::ffff:169.254.169.254]/v1"}, "url", "link-local"),
        ({"url": "http://[64:ff9b::a9fe:a9fe]/v1"}, "url", "link-local"),
        ({"url": "http://[fd00:ec2::254]/v1"}, "url", "secrets"),
        ({"url": "http://0.0.0.0:80/v1"}, "url", "no single machine"),
        ({"url": "http://[::]/v1"}, "url", "no single machine"),
        ({"name": ""}, "name", "is no name"),
        ({"name": "a b"}, "name", "is no name"),
        ({"name": "x" * 64}, "name", "is no name"),
        ({"model": ""}, "model", "1 to 200"),
        ({"model": " m"}, "model", "printable"),
        ({"remote_model": "a\r\nb"}, "remote_model", "printable"),
        ({"uses": ()}, "uses", "must be some of chat"),
        ({"uses": ("chat", "cooking")}, "uses", "'cooking'"),
        ({"key": "two words"}, "key", "no blanks"),
        ({"key": "a\r\nHost: x"}, "key", "no blanks"),
        ({"ca": "x", "url": "http://host/v1"}, "ca", "is for https"),
        ({"health_path": "health"}, "health_path", "must be a path"),
        ({"health_path": "/health?x=1"}, "health_path", "without a query"),
        ({"health_path": "/a b"}, "health_path", "must be a path"),
        ({"weight": 0}, "weight", "from 1 to 100"),
        ({"weight": 101}, "weight", "from 1 to 100"),
        ({"fallback_order": -1}, "fallback_order", "from 0 to 20"),
        ({"max_concurrent": -1}, "max_concurrent", "from 0"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(changes: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        checked(engine(**changes))
    assert refused.value.field == field
    assert "pass" not in refused.value.message or field != "url" or "password" in refused.value.message


@pytest.mark.parametrize("address", ["10.0.0.1", "192.168.1.1", "172.16.0.1", "127.0.0.1", "::1", "fd00::1", "8.8.8.8"])
def test_private_and_public_addresses_are_allowed(address: str) -> None:
    assert forbidden_address(address) == ""


@pytest.mark.parametrize(
    "address",
    ["169.254.0.1", "fe80::1%eth0", "::ffff:169.254.1.1", "2002:a9fe:a9fe::1", "168.63.129.16", "224.0.0.1", "ff02::1"],
)
def test_addresses_that_nobody_is_sent_to(address: str) -> None:
    assert forbidden_address(address) != ""


@pytest.mark.parametrize("address", ["::ffff:10.0.0.1", "64:ff9b::10.0.0.1", "2002:a00:1::1", "64:ff9b::7f00:1"])
def test_a_private_address_is_one_in_every_spelling(address: str) -> None:
    assert is_private_address(address)


def test_hosts_are_compared_in_one_spelling() -> None:
    spellings = ("::ffff:127.0.0.1", "64:ff9b::127.0.0.1", "2002:7f00:1::", "127.0.0.1")
    assert {plain_host(spelling) for spelling in spellings} == {"127.0.0.1"}
    assert all(map(is_this_machine, spellings))
    assert plain_host("FD00:0:0::1%eth0") == "fd00::1"
    assert plain_host("Engine.Test.") == "engine.test"


def test_public_addresses_stay_public() -> None:
    assert not any(map(is_private_address, ("8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2606:4700::1111")))


def test_a_health_path_is_one_of_the_host_and_the_list_of_models_one_of_the_url() -> None:
    assert engine().health_url == "http://10.0.0.9:8000/v1/models"
    assert engine(health_path="/health").health_url == "http://10.0.0.9:8000/health"


def test_uses_become_routes() -> None:
    assert engine(uses=("chat",)).routes == ("/v1/chat/completions",)
    assert engine(uses=("chat", "messages")).routes == (
        "/v1/chat/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
    )
    assert "/v1/responses" not in engine(uses=("chat", "completion", "embeddings")).routes


# What looks mean.


def looked(*looks: EngineLook, before: EngineObservation | None = None, at: datetime = START) -> EngineObservation:
    observed = before or EngineObservation()
    for place, look in enumerate(looks):
        observed = after_look(observed, look, at + place * SECOND)
    return observed


def test_one_failed_look_makes_an_engine_the_last_choice_and_several_take_it_out() -> None:
    assert looked(UP).state is EngineState.UP
    assert looked(UP, DOWN).state is EngineState.FAILING
    assert looked(UP, *[DOWN] * DOWN_AFTER).state is EngineState.DOWN
    back = looked(UP, *[DOWN] * DOWN_AFTER, UP)
    assert (back.state, back.reason, back.failures) == (EngineState.UP, "", 0)
    assert back.since == START + (DOWN_AFTER + 1) * SECOND


def test_a_refused_key_takes_an_engine_out_at_once() -> None:
    denied = looked(UP, DENIED)
    assert (denied.state, denied.reason) == (EngineState.MISCONFIGURED, DENIED.reason)


def test_good_looks_do_not_make_up_for_failed_requests_at_once() -> None:
    doubted = after_failed_request(looked(UP), "closed", START)
    assert doubted.state is EngineState.FAILING
    assert after_look(doubted, UP, START + SECOND).state is EngineState.FAILING
    assert after_look(doubted, UP, START + timedelta(seconds=6)).state is EngineState.UP
    again = after_failed_request(after_look(doubted, UP, START + timedelta(seconds=6)), "closed", START + 7 * SECOND)
    assert after_look(again, UP, START + timedelta(seconds=14)).state is EngineState.FAILING  # doubts grow
    assert after_look(again, UP, START + timedelta(seconds=18)).state is EngineState.UP


def test_an_engine_that_was_seen_to_fail_is_believed_when_it_is_back() -> None:
    killed = after_failed_request(looked(UP), "refused", START)
    assert looked(DOWN, UP, before=killed, at=START + SECOND).state is EngineState.UP


def test_a_clock_that_is_set_back_doubts_nobody_for_ever() -> None:
    doubted = after_failed_request(looked(UP), "closed", START)
    assert after_look(doubted, UP, START - timedelta(days=1)).state is EngineState.UP


STEPS = st.lists(st.tuples(st.sampled_from(["up", "down", "denied", "request"]), st.integers(0, 400)), max_size=40)


@given(STEPS)
def test_whatever_happens_the_state_fits_what_was_seen(steps: list[tuple[str, int]]) -> None:
    observed, now, failed_looks = EngineObservation(), START, 0
    looks = {"up": UP, "down": DOWN, "denied": DENIED}
    for kind, seconds in steps:
        now += timedelta(seconds=seconds)
        before = observed
        if kind == "request":
            observed = after_failed_request(observed, "x", now)
            assert observed.state in (ASKED if before.state in ASKED else {before.state})
            continue
        observed = after_look(observed, looks[kind], now)
        failed_looks = 0 if kind == "up" else failed_looks + 1
        assert observed.failures == failed_looks
        assert observed.checked_at == now
        if kind == "up":
            assert observed.state in {EngineState.UP, EngineState.FAILING, before.state}
        if observed.state is EngineState.DOWN:
            assert failed_looks > 0
        if observed.state is not before.state:
            assert observed.since == now
    assert after_look(observed, UP, now + timedelta(minutes=6)).state is EngineState.UP  # always comes back


# What gateways are told.


def test_fallbacks_come_after_all_that_works_and_before_silent_nodes() -> None:
    ranks = [rank_of(engine(fallback_order=order), EngineState.UP) for order in range(21)]
    assert ranks == sorted(ranks)
    assert ranks[0] == 0
    assert all(10 < rank < 100 for rank in ranks[1:])
    assert rank_of(engine(), EngineState.FAILING) > 200


@given(st.integers(0, 1000), st.integers(0, 50))
def test_gateways_share_a_limit(limit: int, gateways: int) -> None:
    share = share_of(limit, gateways)
    assert (share == 0) == (limit == 0)
    assert share * gateways <= max(limit, gateways if limit else 0)


def states(**by_id: EngineState) -> Any:
    return lambda id: EngineObservation(state=by_id.get(id, EngineState.UNKNOWN))


def test_a_model_of_engines_alone_has_a_name() -> None:
    told = entries_of([engine(model="far", uses=("embeddings",))], states(), {}, hidden=(), gateways=1)
    assert told.models["far"].uses == ("embeddings",)
    [entry] = told.replicas
    assert entry.url == "http://10.0.0.9:8000"
    assert entry.engine is not None
    assert (entry.engine.base, entry.engine.has_fleet) == ("/v1", False)


@pytest.mark.parametrize(
    ("state", "is_told"),
    [
        (EngineState.UNKNOWN, True),
        (EngineState.UP, True),
        (EngineState.FAILING, True),
        (EngineState.DOWN, False),
        (EngineState.MISCONFIGURED, False),
    ],
)
def test_engines_that_cannot_answer_are_not_told_and_their_models_stay(state: EngineState, is_told: bool) -> None:
    told = entries_of([engine()], states(e1=state), {}, hidden=(), gateways=1)
    assert bool(told.replicas) is is_told
    assert "m" in told.models


def test_nobody_answers_for_an_alias_a_disabled_model_or_a_disabled_engine() -> None:
    own = {"m": ModelEntry(name="m", alias_of="other"), "other": ModelEntry(name="other")}
    assert entries_of([engine()], states(), own, hidden=(), gateways=1).models == own
    assert entries_of([engine()], states(), {}, hidden={"m"}, gateways=1).models == {}
    assert entries_of([engine(is_enabled=False)], states(), {}, hidden=(), gateways=1).models == {}


def test_what_the_fleet_does_not_know_of_its_model_an_engine_does_not_say() -> None:
    unknown, known = {"m": ModelEntry(name="m")}, {"m": ModelEntry(name="m", uses=("chat",))}
    both = [engine(uses=("embeddings",))]
    assert entries_of(both, states(), unknown, hidden=(), gateways=1).models["m"].uses == ()
    assert entries_of(both, states(), known, hidden=(), gateways=1).models["m"].uses == ("chat", "embeddings")
