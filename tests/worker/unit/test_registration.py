"""Joining a frontend: the body on the wire, patience, and giving up."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from corral.base.errors import AccessDenied, PeerRefused, PeerUnavailable
from corral.base.retry import Backoff
from corral.wire.registration import CorralWelcome, RegisterRequest, RegisterResponse
from corral.worker.hardware.gpus import Gpus, MeasuredGpu, Vendor
from corral.worker.hardware.machine import Measurement
from corral.worker.membership.registration import (
    AcceptedRegistration,
    Profile,
    Registrar,
    membership,
    registration_body,
)

GOLDEN_BODY = {
    "name": "w1",
    "address": "127.0.0.1:51101",
    "http_address": "127.0.0.1:51190",
    "token": "tok",
    "total_vram": 0,
    "available_vram": 0,
    "gpu_vendor": "",
    "gpu_compute_capability": "",
    "capability": "default",
    "total_ram": 25274793984,
    "available_ram": 24444141568,
    "total_disk": 270553174016,
    "available_disk": 73109417984,
    "max_replicas_per_model": 1,
    "labels": {"node.replica-slots": "1", "site": "lab", "tier": "test"},
}
"""What LocalAI's own worker sends on a machine without a GPU."""

HELLO = {
    "version": "0.1.0",
    "features": [
        "node-secret",
        "heartbeat-status",
        "replica-exits",
        "adapter",
        "file-ranges",
        "backend-rollback",
        "file-fetches",
        "late-digests",
        "inventory",
        "cards",
        "join-codes",
        "replica-tokens",
        "object-digests",
        "confinement",
        "nats-user",
    ],
    "secret": "own-secret",
    "incarnation": "life-1",
    "heartbeat_seconds": 10,
}


def sent(profile: Profile, measured: Measurement) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(msgspec.json.encode(registration_body(profile, measured)))
    return body


def test_the_body_is_localais_and_corrals_own_field(profile: Profile, measured: Measurement) -> None:
    assert sent(profile, measured) == {**GOLDEN_BODY, "corral": HELLO}


def test_each_gpu_is_told_in_corrals_own_field(profile: Profile, measured: Measurement) -> None:
    cards = (
        MeasuredGpu(vendor=Vendor.NVIDIA, id="GPU-a", name="NVIDIA L4", total=24, free=20),
        MeasuredGpu(vendor=Vendor.NVIDIA, id="GPU-b", index=1, name="NVIDIA L4", total=24),
    )
    body = sent(profile, replace(measured, cards=cards))

    assert body["corral"].pop("cards") == [
        {"id": "GPU-a", "name": "NVIDIA L4", "vendor": "nvidia", "total": 24, "free": 20},
        {"id": "GPU-b", "index": 1, "name": "NVIDIA L4", "vendor": "nvidia", "total": 24},
    ]
    assert body == {**GOLDEN_BODY, "corral": HELLO}


def test_it_has_the_fields_and_types_of_every_recorded_registration(
    profile: Profile, measured: Measurement, golden: Path
) -> None:
    recorded = json.loads((golden / "http_register.json").read_text())["messages"]
    bodies = [message["request"] for message in recorded if message["direction"].startswith("LocalAI worker")]
    assert len(bodies) >= 3
    for body in bodies:
        ours = sent(replace(profile, vram_budget=body.get("vram_budget", "")), measured)
        del ours["corral"]
        assert {name: type(value) for name, value in ours.items()} == {name: type(body[name]) for name in body}


def test_a_budget_and_more_replicas_are_told(profile: Profile, measured: Measurement) -> None:
    body = sent(replace(profile, vram_budget="80%", max_replicas_per_model=2), measured)

    assert body["vram_budget"] == "80%"
    assert body["max_replicas_per_model"] == 2
    assert body["labels"]["node.replica-slots"] == "2"


def test_video_memory_that_cannot_be_read_is_left_out_and_not_0(profile: Profile, measured: Measurement) -> None:
    unknown = Gpus(vendor="intel", total_vram=None, available_vram=None)
    body = sent(profile, replace(measured, gpus=unknown))

    assert body["gpu_vendor"] == "intel"
    assert {"total_vram", "available_vram"} & body.keys() == set()


def test_video_memory_of_which_nobody_says_what_is_free_counts_as_free(profile: Profile, measured: Measurement) -> None:
    body = sent(profile, replace(measured, gpus=Gpus(vendor="intel", total_vram=8, available_vram=None)))

    assert (body["total_vram"], body["available_vram"]) == (8, 8)


def test_less_than_one_replica_is_one(profile: Profile, measured: Measurement) -> None:
    assert sent(replace(profile, max_replicas_per_model=0), measured)["max_replicas_per_model"] == 1


def test_without_a_token_there_is_none_in_the_body(profile: Profile, measured: Measurement) -> None:
    assert "token" not in sent(replace(profile, token=""), measured)


def test_what_cannot_be_measured_is_left_out_and_not_0(profile: Profile) -> None:
    body = sent(profile, Measurement())

    assert not body.keys() & {"total_ram", "available_ram", "total_disk", "available_disk"}


def test_a_gpu_is_reported(profile: Profile) -> None:
    gpus = Gpus(vendor="nvidia", compute_capability="8.9", total_vram=24 * 2**30, available_vram=20 * 2**30)
    body = sent(profile, Measurement(gpus=gpus, capability="nvidia"))

    assert body["gpu_vendor"] == "nvidia"
    assert body["gpu_compute_capability"] == "8.9"
    assert body["total_vram"] == 24 * 2**30
    assert body["available_vram"] == 20 * 2**30
    assert body["capability"] == "nvidia"


def test_a_frontend_that_knows_secrets_is_shown_the_nodes_own(profile: Profile) -> None:
    welcome = CorralWelcome(version="0.1.0", features=["node-secret"])
    member = membership(RegisterResponse(id="n1", status="pending", corral=welcome), profile)

    assert member == AcceptedRegistration(
        node_id=member.node_id,
        bearer="own-secret",
        status="pending",
        is_corral=True,
        features=frozenset({"node-secret"}),
    )


@pytest.mark.parametrize(
    "answer",
    [
        RegisterResponse(id="n1"),
        RegisterResponse(id="n1", status="healthy", node_type="backend"),
        RegisterResponse(id="n1", corral=CorralWelcome(version="0.1.0", features=[])),
    ],
)
def test_any_other_frontend_is_shown_the_registration_token(profile: Profile, answer: RegisterResponse) -> None:
    assert membership(answer, profile).bearer == "tok"


def test_a_member_does_not_show_its_bearer(profile: Profile) -> None:
    assert "own-secret" not in repr(profile)
    assert "tok" not in repr(membership(RegisterResponse(id="n1"), profile))


class Frontend:
    """Answers as the script says; the last answer stays."""

    def __init__(self, *script: RegisterResponse | Exception) -> None:
        self._script = list(script)
        self.bodies: list[RegisterRequest] = []

    async def register(self, body: RegisterRequest) -> RegisterResponse:
        self.bodies.append(body)
        answer = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


TOKEN_PATIENCE = timedelta(seconds=5)
ACCEPTED = RegisterResponse(id="n1", status="healthy")
DOWN = PeerUnavailable("frontend a:1 does not answer: Connection refused")
WRONG_TOKEN = PeerRefused("frontend a:1 answered 401: invalid registration token", status=401)


@pytest.fixture
def registrar(profile: Profile, gauge: Any, clock: Any) -> Any:
    def make(frontend: Frontend, **changes: Any) -> Registrar:
        backoff = Backoff(first=timedelta(milliseconds=250), cap=timedelta(seconds=30), spread=0)
        parts = {"profile": profile, "gauge": gauge, "clock": clock, "backoff": backoff}
        return Registrar(frontend=frontend, token_patience=TOKEN_PATIENCE, **{**parts, **changes})

    return make


async def test_a_worker_that_was_admitted_before_comes_back_with_its_secret(registrar: Any, profile: Profile) -> None:
    """The registration token may have been changed since."""
    frontend = Frontend(WRONG_TOKEN, ACCEPTED)

    member = await registrar(frontend, profile=replace(profile, was_admitted=True)).join()

    assert member.node_id == "n1"
    assert [body.token for body in frontend.bodies] == [profile.token, profile.hello.secret]


LIMITED = PeerUnavailable("frontend a:1 answered 429: too many wrong join codes")
PENDING = RegisterResponse(id="n1", status="pending")


@pytest.mark.parametrize(
    ("script", "presented"),
    [
        ([ACCEPTED], ["own-secret"]),
        ([WRONG_TOKEN, ACCEPTED], ["own-secret", "tok"]),
        ([PENDING, ACCEPTED], ["own-secret", "tok"]),
        ([PENDING, WRONG_TOKEN], ["own-secret", "tok"]),
        ([PENDING, LIMITED], ["own-secret", "tok"]),
    ],
    ids=["a member", "a removed one", "approved by the code", "a bad code", "a limited code"],
)
async def test_a_member_with_a_code_shows_its_secret_first(
    registrar: Any, profile: Profile, script: list[Any], presented: list[str]
) -> None:
    """The code is in the settings of many a service, where it stays after it was used."""
    frontend = Frontend(*script)

    assert await registrar(frontend, profile=replace(profile, was_admitted=True, has_code=True)).join()

    assert [body.token for body in frontend.bodies] == presented


async def test_a_code_that_has_done_its_work_is_not_shown_again(registrar: Any, profile: Profile) -> None:
    frontend = Frontend(ACCEPTED)
    member = registrar(frontend, profile=replace(profile, has_code=True))

    assert await member.join()
    assert await member.rejoin()

    assert [body.token for body in frontend.bodies] == ["tok", "own-secret"]


async def test_a_removed_machine_is_told_every_way_to_join_again(registrar: Any, profile: Profile) -> None:
    forgotten = replace(profile, token=profile.hello.secret, was_admitted=True)

    with pytest.raises(AccessDenied, match="--code-file or --code-descriptor, or set CORRAL_JOIN_CODE"):
        await registrar(Frontend(WRONG_TOKEN), profile=forgotten).join()


async def test_a_frontend_that_is_down_is_asked_for_as_long_as_it_takes(registrar: Any, clock: Any) -> None:
    frontend = Frontend(*[DOWN] * 200, ACCEPTED)

    member = await registrar(frontend).join()

    assert member.node_id == "n1"
    assert clock.slept[:9] == [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert len(frontend.bodies) == 201


async def test_every_attempt_measures_anew(registrar: Any, measured: Measurement) -> None:
    class Shrinking:
        left = 100

        async def measure(self) -> Measurement:
            self.left -= 1
            assert measured.disk is not None
            return replace(measured, disk=replace(measured.disk, available=self.left))

    frontend = Frontend(DOWN, DOWN, ACCEPTED)

    await registrar(frontend, gauge=Shrinking()).join()

    assert [body.available_disk for body in frontend.bodies] == [99, 98, 97]


NO_ROUTE = PeerRefused("frontend a:1 answered 404: Not Found", status=404)


async def test_a_refused_token_ends_a_first_registration_after_its_time(
    registrar: Any, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    frontend = Frontend(WRONG_TOKEN)

    with pytest.raises(AccessDenied, match="LOCALAI_REGISTRATION_TOKEN") as ended:
        await registrar(frontend).join()

    assert TOKEN_PATIENCE.total_seconds() <= sum(clock.slept) < TOKEN_PATIENCE.total_seconds() + 30
    assert "tok;" not in str(ended.value)
    told = [record.getMessage() for record in caplog.records if "is refused, and tried for" in record.getMessage()]
    assert len(told) == len(frontend.bodies) - 1
    assert all("LOCALAI_REGISTRATION_TOKEN" in text for text in told)


@pytest.mark.parametrize("status", [404, 405])
async def test_a_missing_route_is_asked_for_as_long_as_it_takes(
    registrar: Any, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    """A proxy says so whose frontend starts, and a frontend before it was put into distributed mode."""
    missing = PeerRefused(f"frontend a:1 answered {status}: no", status=status)
    frontend = Frontend(*[missing] * 200, ACCEPTED)

    assert await registrar(frontend).join()

    assert len(frontend.bodies) == 201
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert "must lead to a frontend" in told[0]


async def test_a_token_has_its_time_from_its_own_first_refusal_on(registrar: Any) -> None:
    """A frontend that came up behind a proxy may disagree with others for a moment, as at any other time."""
    assert await registrar(Frontend(*[NO_ROUTE] * 50, WRONG_TOKEN, ACCEPTED)).join()


@pytest.mark.parametrize(("refusal", "times"), [(WRONG_TOKEN, 4), (NO_ROUTE, 15)])
async def test_a_frontend_that_accepts_late_is_fine(registrar: Any, refusal: PeerRefused, times: int) -> None:
    assert await registrar(Frontend(*[refusal] * times, ACCEPTED)).join()


@pytest.mark.parametrize("status", [302, 400, 422])
async def test_any_other_refusal_ends_a_first_registration_at_once(registrar: Any, clock: Any, status: int) -> None:
    with pytest.raises(PeerRefused) as refusal:
        await registrar(Frontend(PeerRefused("name is required", status=status))).join()

    assert refusal.value.status == status
    assert "name is required" in str(refusal.value)
    assert clock.slept == []


@pytest.mark.parametrize("refusal", [WRONG_TOKEN, PeerRefused("no", status=400), DOWN])
async def test_a_later_registration_never_gives_up(registrar: Any, refusal: Exception) -> None:
    frontend = Frontend(*[refusal] * 50, ACCEPTED)

    assert await registrar(frontend).rejoin()


async def test_an_outage_is_told_once_it_lasts_and_so_is_its_end(
    registrar: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    await registrar(Frontend(*[DOWN] * 20, *[PeerUnavailable("another reason")] * 5, ACCEPTED)).join()

    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", f"registration: {DOWN.message}"),
        ("WARNING", f"registration: {DOWN.message}"),
        ("WARNING", "registration: another reason"),
        ("INFO", "registration: works now"),
    ]
