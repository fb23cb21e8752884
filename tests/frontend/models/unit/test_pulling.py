"""Decisions about pulls: what is needed, what joins, what is refused, and which files may go."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from corral.base.errors import Conflict, InvalidInput
from corral.base.ids import NodeId, OperationId
from corral.base.yaml_values import write_document
from corral.frontend.models.decide.pulling import (
    PullPolicy,
    StoreSpace,
    check_files,
    check_name_is_free,
    check_space,
    evidence_of_pull,
    has_model,
    joined,
    payload_of,
    plan_of,
)
from corral.frontend.models.decide.removal import awaited_by_none
from corral.frontend.models.decide.storage import FileVerdict, FoundFile, Needs, judge
from corral.frontend.models.decide.stored import ModelChangeKind, ModelSource, StoredModel, WeightFile, revision_row
from corral.frontend.models.storage import needed_paths
from corral.frontend.operations.decide.intent import Intent, IntentState, Proven, Unproven, Verb
from corral.frontend.operations.decide.reasons import sentence
from corral.hubs.plans import BuildChoice, ModelOrigin, PlannedFile, PullPlan

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ORIGIN = ModelOrigin(reference="hf://o/r", resolved="hf://o/r@1")
FILE = PlannedFile(path="m/a.gguf", url="https://h/a", size=100, digest="sha256:" + "0" * 64)
PLAN = PullPlan(name="m", config="name: m\n", files=(FILE,), origin=ORIGIN)


def an_intent(plan: PullPlan = PLAN, **changes: Any) -> Intent:
    intent = Intent(
        node_id=NodeId("store:s"),
        verb=Verb.PULL,
        subject=plan.name,
        payload=payload_of(plan),
        operation_id=OperationId("op"),
        accepted_at=NOW,
        changed_at=NOW,
        next_try=NOW,
    )
    return replace(intent, **changes)


def a_model(name: str = "m", text: str = "name: m\n", **changes: Any) -> StoredModel:
    model = StoredModel(
        name=name, number=1, revision="r", text=text, source=ModelSource.PULL, changed_at=NOW, changed_by="ada"
    )
    return replace(model, **changes)


def test_a_plan_survives_being_stored_without_what_was_not_taken() -> None:
    plan = msgspec.structs.replace(PLAN, choices=(BuildChoice(name="Q8", bytes=9),), notes=("a note",))
    stored = msgspec.json.decode(msgspec.json.encode(payload_of(plan)))
    assert plan_of(stored) == msgspec.structs.replace(plan, choices=())


@pytest.mark.parametrize(
    ("missing", "is_added", "words"),
    [
        ([FILE], False, "1 of 1 files are not there yet: m/a.gguf"),
        ([], False, "all files are there, and the model m is not added yet"),
    ],
)
def test_what_is_missing_is_told(missing: list[PlannedFile], is_added: bool, words: str) -> None:
    proof = evidence_of_pull(an_intent(), PLAN, missing, is_added=is_added).proof
    assert isinstance(proof, Unproven)
    assert sentence(proof.reason) == words


def test_the_rung_tells_whether_digests_were_promised() -> None:
    bare = msgspec.structs.replace(PLAN, files=(FILE, msgspec.structs.replace(FILE, path="b", digest="")))
    rungs = [evidence_of_pull(an_intent(), plan, [], is_added=True).proof for plan in (PLAN, bare)]
    assert rungs == [Proven(rung="by digest"), Proven(rung="whole; nobody promised a digest of some files")]


def test_a_model_counts_by_what_was_pulled_last_and_not_by_its_text() -> None:
    pulled = revision_row(a_model(text=PLAN.config, origin=ORIGIN), ModelChangeKind.PULLED)
    edited = revision_row(a_model(text="edited", origin=ORIGIN), ModelChangeKind.EDITED)
    other = revision_row(a_model(text="another", origin=ORIGIN), ModelChangeKind.PULLED)
    there = a_model(origin=ORIGIN, text="edited")
    assert has_model(PLAN, there, [edited, pulled, other])
    assert not has_model(PLAN, there, [edited, other, pulled])
    assert not has_model(PLAN, a_model(origin=msgspec.structs.replace(ORIGIN, resolved="hf://o/r@2")), [pulled])
    assert not has_model(PLAN, None, [pulled])


def test_who_joins_whom() -> None:
    other = msgspec.structs.replace(PLAN, config="name: m\nthreads: 2\n")
    assert joined(PLAN, an_intent())
    assert joined(PLAN, an_intent(state=IntentState.BLOCKED))
    assert not joined(PLAN, None)
    assert not joined(PLAN, an_intent(state=IntentState.SATISFIED))
    assert not joined(PLAN, an_intent(other, state=IntentState.BLOCKED))
    with pytest.raises(Conflict, match=r"another pull of m is under way \(operation op\)"):
        joined(PLAN, an_intent(other))


def test_a_name_is_free_for_the_reference_that_it_came_from() -> None:
    check_name_is_free(PLAN, None)
    check_name_is_free(PLAN, a_model(origin=msgspec.structs.replace(ORIGIN, resolved="older")))
    with pytest.raises(Conflict, match=r"a model m already \(by ada\); remove it first"):
        check_name_is_free(PLAN, a_model())


@pytest.mark.parametrize(
    ("needed", "free", "used", "policy", "words"),
    [
        (100, 100, 0, PullPolicy(free_bytes=0), ""),
        (101, 100, 0, PullPolicy(free_bytes=0), "m needs 101 B, and s has 100 B"),
        (0, 0, 99, PullPolicy(free_bytes=10, quota_bytes=1), ""),
        (90, 100, 0, PullPolicy(free_bytes=20), "models_min_free"),
        (50, 1000, 60, PullPolicy(free_bytes=0, quota_bytes=100), "models_quota"),
        (40, 1000, 60, PullPolicy(free_bytes=0, quota_bytes=100), ""),
    ],
)
def test_room_is_checked(needed: int, free: int, used: int, policy: PullPolicy, words: str) -> None:
    space = StoreSpace(name="s", free_bytes=free, used_bytes=used)
    if not words:
        check_space(PLAN, needed, space, policy)
        return
    with pytest.raises(Conflict, match=words):
        check_space(PLAN, needed, space, policy)


def test_a_prune_takes_only_what_came_by_a_pull_and_nobody_needs() -> None:
    needs = Needs(
        models=[
            a_model(files=(WeightFile(path="m/a.gguf"),)),
            a_model("d", "name: d\nparameters:\n  model: folder\n"),
            a_model("e", "name: e\nmmproj: eyes/x.gguf\n"),
        ],
        pulls=[msgspec.structs.replace(PLAN, name="p", files=(msgspec.structs.replace(FILE, path="p/new.gguf"),))],
        texts={"by-hand.yaml": "parameters:\n  model: hand.gguf\n"},
    )
    ours = ("m/a.gguf", "folder/part/1", "eyes/x.gguf", "p/new.gguf", "hand.gguf", "gone/old.gguf")
    files = [FoundFile(path=path, bytes=1, is_ours=True) for path in ours]
    files += [FoundFile(path="mine.gguf", bytes=1), FoundFile(path=".first-model-given", bytes=0)]
    assert judge(files, needs) == [
        FileVerdict(path="p/new.gguf", bytes=1, kept="p is being pulled"),
        FileVerdict(path="hand.gguf", bytes=1, kept="by-hand.yaml names it"),
        FileVerdict(path="gone/old.gguf", bytes=1),
        FileVerdict(path="mine.gguf", bytes=1, kept="it did not come by a pull"),
    ]


def test_a_removal_keeps_what_a_pull_brings() -> None:
    kept: list[str] = []
    assert awaited_by_none(["m/a.gguf", "m", "b"], [PLAN], kept) == ["b"]
    assert kept == ["m/a.gguf stays: m is being pulled with it", "m stays: m is being pulled with it"]


def test_a_prune_understands_configurations_however_they_are_written() -> None:
    long = " ".join(["a long name"] * 20) + ".gguf"
    models = [
        a_model("folded", write_document({"name": "folded", "backend": "echo", "parameters": {"model": long}})),
        a_model("escaped", 'name: escaped\nbackend: echo\nparameters: {model: "caf\\u00e9.gguf"}\n'),
        a_model("split", "name: split\nbackend: echo\nparameters:\n  model: s-00001-of-00002.gguf\n"),
    ]
    paths = [long, "caf\u00e9.gguf", "s-00001-of-00002.gguf", "s-00002-of-00002.gguf"]
    files = [FoundFile(path=path, bytes=1, is_ours=True) for path in paths]
    assert judge(files, Needs(models=models, paths=needed_paths(models))) == []


@pytest.mark.parametrize("path", ["other.yaml", "./other.yml", ".corral/store"])
def test_a_pull_brings_no_configurations_and_nothing_of_corral_s_own(path: str) -> None:
    with pytest.raises(InvalidInput, match="a pull must not change them"):
        check_files(msgspec.structs.replace(PLAN, files=(msgspec.structs.replace(FILE, path=path),)))
    check_files(PLAN)
