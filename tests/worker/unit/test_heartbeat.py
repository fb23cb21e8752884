"""Signs of life: what they carry, what their answers mean, and how often they come."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from corral.base.errors import PeerRefused, PeerUnavailable
from corral.base.ids import Incarnation, NodeId
from corral.wire.registration import CorralBeat, CorralStatus, HeartbeatRequest, HeartbeatResponse
from corral.worker.hardware.gpus import Gpus, MeasuredGpu, Vendor
from corral.worker.hardware.machine import Measurement
from corral.worker.membership.heartbeat import BeatResult, HeartbeatLoop, heartbeat_body
from corral.worker.membership.registration import AcceptedRegistration

LIFE = Incarnation("life-1")
HEARD = HeartbeatResponse(message="heartbeat received")
GONE = PeerRefused("node not found", status=404)


def told(status: str = "healthy", *, deregistered: bool = False) -> HeartbeatResponse:
    return HeartbeatResponse(corral=CorralStatus(status=status, deregistered=deregistered))


def sent(measured: Measurement, member: AcceptedRegistration) -> dict[str, Any]:
    corral = CorralBeat(incarnation=LIFE, inventory="f1")
    body: dict[str, Any] = json.loads(msgspec.json.encode(heartbeat_body(measured, member, corral)))
    return body


def test_without_a_gpu_the_body_is_localais(measured: Measurement, member: AcceptedRegistration) -> None:
    assert sent(measured, member) == {
        "available_disk": 73109417984,
        "available_ram": 24444141568,
        "total_disk": 270553174016,
    }


def test_it_has_the_fields_of_every_recorded_heartbeat(
    measured: Measurement, member: AcceptedRegistration, golden: Path
) -> None:
    recorded = json.loads((golden / "http_heartbeat.json").read_text())["messages"]
    beats = [m for m in recorded if m["direction"].startswith("LocalAI worker") and m["path"].endswith("/heartbeat")]
    assert len(beats) >= 2
    for beat in beats:
        assert sent(measured, member).keys() == beat["request"].keys()


def test_a_gpu_adds_its_free_memory(measured: Measurement, member: AcceptedRegistration) -> None:
    gpus = Gpus(vendor="amd", total_vram=8, available_vram=0)

    assert sent(replace(measured, gpus=gpus), member)["available_vram"] == 0


def test_video_memory_that_cannot_be_read_is_left_out(measured: Measurement, member: AcceptedRegistration) -> None:
    unknown = Gpus(vendor="intel", total_vram=8, available_vram=None)

    assert "available_vram" not in sent(replace(measured, gpus=unknown), member)


def test_a_corral_frontend_hears_of_gpus_that_were_found_late(
    measured: Measurement, member: AcceptedRegistration
) -> None:
    late = replace(measured, gpus=Gpus(vendor="nvidia", total_vram=8, available_vram=7))

    localai, corral = sent(late, member), sent(late, replace(member, is_corral=True))
    assert {"total_vram", "gpu_vendor"} & localai.keys() == set()
    assert (corral["total_vram"], corral["available_vram"], corral["gpu_vendor"]) == (8, 7, "nvidia")


def test_what_cannot_be_measured_is_left_out(member: AcceptedRegistration) -> None:
    assert sent(Measurement(), member) == {}


def test_only_a_corral_frontend_is_told_the_incarnation_and_a_fingerprint_of_the_backends(
    measured: Measurement, member: AcceptedRegistration
) -> None:
    assert sent(measured, replace(member, is_corral=True))["corral"] == {"incarnation": "life-1", "inventory": "f1"}


class Frontend:
    """Answers as the script says; at its end it knows nobody."""

    def __init__(self, clock: Any, *script: HeartbeatResponse | Exception) -> None:
        self._clock = clock
        self._script = list(script)
        self.times: list[float] = []
        self.bodies: list[HeartbeatRequest] = []
        self.takes: dict[int, float] = {}
        """How long some beats take, by their number."""
        self.about_models: Exception | None = None
        """What it answers when it is asked for models, instead of their number."""

    async def in_flight(self, member: AcceptedRegistration) -> int:
        if self.about_models is not None:
            raise self.about_models
        return 0

    async def heartbeat(self, member: AcceptedRegistration, body: HeartbeatRequest) -> HeartbeatResponse:
        self.times.append(self._clock.seconds)
        self.bodies.append(body)
        self._clock.seconds += self.takes.get(len(self.times), 0)
        answer = self._script.pop(0) if self._script else GONE
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def heartbeat(gauge: Any, clock: Any) -> Any:
    def make(frontend: Frontend) -> HeartbeatLoop:
        return HeartbeatLoop(
            frontend=frontend,
            gauge=gauge,
            clock=clock,
            interval=timedelta(seconds=10),
            incarnation=LIFE,
            inventory=lambda: "f1",
        )

    return make


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (HEARD, BeatResult.HEARD),
        (HeartbeatResponse(), BeatResult.HEARD),
        (told(), BeatResult.HEARD),
        (told("offline"), BeatResult.HEARD),
        (told("offline", deregistered=True), BeatResult.FORGOTTEN),
        (GONE, BeatResult.FORGOTTEN),
        (PeerRefused("invalid registration token", status=401), BeatResult.FORGOTTEN),
        (PeerRefused("forbidden", status=403), BeatResult.UNHEARD),
        (PeerUnavailable("down"), BeatResult.UNHEARD),
    ],
)
async def test_what_becomes_of_a_heartbeat(
    heartbeat: Any,
    clock: Any,
    member: AcceptedRegistration,
    answer: HeartbeatResponse | Exception,
    expected: BeatResult,
) -> None:
    assert await heartbeat(Frontend(clock, answer)).beat(member, Measurement()) is expected


@pytest.mark.parametrize("status", [404, 401])
@pytest.mark.parametrize("is_corral", [False, True])
async def test_a_localai_frontend_without_its_database_has_forgotten_nobody(
    heartbeat: Any, clock: Any, member: AcceptedRegistration, status: int, is_corral: bool
) -> None:
    frontend = Frontend(clock, PeerRefused("node not found", status=status))
    frontend.about_models = PeerUnavailable("its database is down")

    result = await heartbeat(frontend).beat(replace(member, is_corral=is_corral), Measurement())

    is_unclear = status == 404 and not is_corral
    assert result is (BeatResult.UNHEARD if is_unclear else BeatResult.FORGOTTEN)


@pytest.mark.parametrize("refusal", [PeerRefused("Not Found", status=404), PeerUnavailable("its database is down")])
async def test_who_answers_for_a_localai_frontend_that_is_away_is_told_once(
    heartbeat: Any, clock: Any, member: AcceptedRegistration, caplog: pytest.LogCaptureFixture, refusal: Exception
) -> None:
    """A proxy answers 404 to everything; to register again would end what that frontend knows of loaded models."""
    frontend = Frontend(clock, *[GONE] * 3)
    frontend.about_models = refusal
    loop = heartbeat(frontend)

    assert [await loop.beat(member, Measurement()) for _ in range(3)] == [BeatResult.UNHEARD] * 3

    [told_once] = [record.getMessage() for record in caplog.records]
    assert told_once.startswith("heartbeat: node not found, but ")
    assert str(refusal) in told_once


async def test_each_gpu_is_told_where_both_sides_know_of_that(
    heartbeat: Any, clock: Any, member: AcceptedRegistration, measured: Measurement
) -> None:
    card = MeasuredGpu(vendor=Vendor.AMD, id="0000:03:00.0", name="Radeon", total=16, free=9)
    knowing = replace(member, is_corral=True, features=frozenset({"cards"}))
    frontend = Frontend(clock, HEARD, HEARD, HEARD)
    for peer, cards in ((knowing, (card,)), (knowing, ()), (replace(member, is_corral=True), (card,))):
        await heartbeat(frontend).beat(peer, replace(measured, cards=cards))

    told_of = [json.loads(msgspec.json.encode(body))["corral"].get("cards") for body in frontend.bodies]
    assert told_of == [
        [{"id": "0000:03:00.0", "name": "Radeon", "vendor": "amd", "total": 16, "free": 9}],
        [],
        None,
    ]


async def test_beats_come_once_per_interval_whatever_they_take(
    heartbeat: Any, clock: Any, member: AcceptedRegistration
) -> None:
    frontend = Frontend(clock, *[HEARD] * 5)
    frontend.takes = {1: 0.5, 2: 9.5}

    await heartbeat(frontend).until_forgotten(member)

    assert frontend.times == [10, 20, 30, 40, 50, 60]


class SlowGauge:
    """Measures as long as a busy disk takes, and counts."""

    def __init__(self, clock: Any, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self.times: list[float] = []

    async def measure(self) -> Measurement:
        self.times.append(self._clock.seconds)
        self._clock.seconds += self._seconds
        return Measurement()


@pytest.mark.parametrize(("interval", "ahead"), [(10, 1.0), (60, 1.0), (2, 0.5)])
async def test_measuring_begins_a_little_ahead_so_that_it_makes_no_beat_late(
    clock: Any, member: AcceptedRegistration, interval: int, ahead: float
) -> None:
    gauge, frontend = SlowGauge(clock, ahead * 0.9), Frontend(clock, HEARD, HEARD)
    beating = HeartbeatLoop(
        frontend=frontend,
        gauge=gauge,
        clock=clock,
        interval=timedelta(seconds=interval),
        incarnation=LIFE,
        inventory=lambda: "f1",
    )

    await beating.until_forgotten(member)

    assert frontend.times == pytest.approx([interval, 2 * interval, 3 * interval])
    assert gauge.times == pytest.approx([time - ahead for time in frontend.times])


async def test_a_pause_is_followed_by_one_beat_and_not_by_all_that_were_missed(
    heartbeat: Any, clock: Any, member: AcceptedRegistration
) -> None:
    frontend = Frontend(clock, *[HEARD] * 4)
    frontend.takes = {2: 3600.5}

    await heartbeat(frontend).until_forgotten(member)

    assert frontend.times == [10, 20, 3620.5, 3630, 3640]


async def test_beats_go_on_while_the_frontend_is_down(heartbeat: Any, clock: Any, member: AcceptedRegistration) -> None:
    frontend = Frontend(clock, *[PeerUnavailable("down")] * 100, HEARD)

    await heartbeat(frontend).until_forgotten(member)

    assert len(frontend.times) == 102


async def test_failures_are_told_once_per_change(
    heartbeat: Any, clock: Any, member: AcceptedRegistration, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    down, refused = PeerUnavailable("down"), PeerRefused("forbidden", status=403)

    await heartbeat(Frontend(clock, HEARD, *[down] * 10, *[refused] * 3, HEARD, HEARD)).until_forgotten(member)

    assert [record.message for record in caplog.records] == [
        "heartbeat: down",
        "heartbeat: forbidden",
        "heartbeat: works now",
        "heartbeat: node not found",
    ]


async def test_a_pending_node_says_once_how_to_approve_it_and_then_that_it_was(
    heartbeat: Any, clock: Any, member: AcceptedRegistration, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    pending = replace(member, node_id=NodeId("n1"), status="pending", is_corral=True)
    script = [told("pending"), told("pending"), told("healthy"), told("healthy"), told("draining")]

    await heartbeat(Frontend(clock, *script)).until_forgotten(pending)

    assert [record.message for record in caplog.records][:3] == [
        "waiting for approval: run `corral nodes approve n1`",
        "approved; now healthy",
        "the frontend sees this node as draining",
    ]


async def test_a_new_id_has_to_be_approved_by_its_own_name(
    heartbeat: Any, clock: Any, member: AcceptedRegistration, caplog: pytest.LogCaptureFixture
) -> None:
    beating = heartbeat(Frontend(clock))

    for node in ("n1", "n2"):
        await beating.until_forgotten(replace(member, node_id=NodeId(node), status="pending", is_corral=True))

    approvals = [record.message for record in caplog.records if "approve" in record.message]
    assert approvals == [f"waiting for approval: run `corral nodes approve {node}`" for node in ("n1", "n2")]


async def test_a_localai_frontend_is_not_told_of_corrals_commands(
    heartbeat: Any, clock: Any, member: AcceptedRegistration, caplog: pytest.LogCaptureFixture
) -> None:
    await heartbeat(Frontend(clock)).until_forgotten(replace(member, status="pending", is_corral=False))

    assert "waiting for approval: an administrator must give it" in caplog.text
