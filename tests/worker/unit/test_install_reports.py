"""Progress of installs, as frontends of both kinds hear it."""

import json

import pytest

from corral.base.ids import NodeId
from corral.wire.backends import InstallRequest, Phase
from corral.worker.installing.progress import InstallReports, InstallStep
from tests.kit.backend_node import Published
from tests.kit.clock import ManualClock


@pytest.mark.parametrize(("is_with_localai", "told"), [(True, "extracting"), (False, "verifying")])
async def test_a_localai_frontend_hears_its_own_words_only(is_with_localai: bool, told: str) -> None:
    bus = Published()
    reports = InstallReports(bus, ManualClock(), is_with_localai=lambda: is_with_localai)

    async with reports.of(NodeId("n1"), InstallRequest(backend="mock", op_id="o1")) as report:
        report(InstallStep(text="Verifying mock", done=1, total=1, phase=Phase.VERIFYING))

    [(_, event)] = bus.messages
    assert json.loads(event)["phase"] == told
