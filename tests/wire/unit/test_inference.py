"""Which routes replicas answer."""

from corral.adapter import app as adapter
from corral.wire.models import ADAPTED_ROUTES, ROUTE_USES, known_routes


def test_adapters_answer_the_routes_that_workers_promise() -> None:
    assert {*adapter._ROUTES, *adapter._SOUND_ROUTES} == ADAPTED_ROUTES


def test_only_routes_of_inference_are_taken_from_strangers() -> None:
    assert known_routes(["/v1/messages", "/api/v1/keys", "x"]) == {"/v1/messages"}
    assert known_routes(ROUTE_USES) == ROUTE_USES.keys()
