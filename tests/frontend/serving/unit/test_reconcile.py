"""What should not be there any more: outgrown replicas and unexplained processes."""

import pytest

from corral.base.ids import NodeId
from corral.frontend.models.decide.model import Catalogue, ModelProblem, ModelSpec
from corral.frontend.nodes.decide.reports import ReportedProcess
from corral.frontend.serving.decide.replica import FINAL, LIVE, Explained, Outgrown, ReplicaState, outgrown
from tests.kit.samples import a_load_job, a_replica

NODE = NodeId("node-of-nobody")


def catalogue(*specs: ModelSpec, problems: tuple[ModelProblem, ...] = ()) -> Catalogue:
    return Catalogue(models={spec.name: spec for spec in specs}, problems=problems)


@pytest.mark.parametrize(
    ("catalogue", "expected"),
    [
        (catalogue(ModelSpec(name="small", revision="r1")), None),
        (catalogue(ModelSpec(name="small", revision="r2")), Outgrown.CHANGED),
        (catalogue(ModelSpec(name="small", revision="r1", alias_of="x")), Outgrown.REDIRECTED),
        (catalogue(), Outgrown.DELETED),
        (
            catalogue(problems=(ModelProblem(source="a.yaml", name="other", problem="bad", may_hide=True),)),
            Outgrown.DELETED,
        ),
        (catalogue(problems=(ModelProblem(source="a.yaml", name="small", problem="bad", may_hide=True),)), None),
        (catalogue(problems=(ModelProblem(source="a.yaml", problem="no YAML", may_hide=True),)), None),
        (catalogue(problems=(ModelProblem(source="a.yaml", problem="was read before"),)), Outgrown.DELETED),
    ],
)
def test_a_replica_is_outgrown_when_the_files_certainly_say_so(catalogue: Catalogue, expected: Outgrown | None) -> None:
    assert outgrown(a_replica(), catalogue) is expected


def a_process(**fields: object) -> ReportedProcess:
    return ReportedProcess(**{"model": "small", "index": 0, "address": "127.0.0.1:1", **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("state", sorted(ReplicaState))
def test_living_replicas_explain_the_process_in_their_place_and_final_ones_do_not(state: ReplicaState) -> None:
    explained = Explained.by([a_replica(state=state)], [])

    assert explained.covers(NODE, a_process()) is (state in LIVE)
    assert (state in FINAL) is (state not in LIVE)
    assert not explained.covers(NODE, a_process(index=1))
    assert not explained.covers(NODE, a_process(model="other"))
    assert not explained.covers(NodeId("another"), a_process())


def test_a_load_explains_every_process_of_its_model_on_its_node() -> None:
    explained = Explained.by([], [a_load_job(node_id=NODE), a_load_job(model="waiting")])

    assert explained.covers(NODE, a_process(index=3))
    assert not explained.covers(NODE, a_process(model="waiting"))
