"""Dispatchers, workers and everything that can go wrong between them, in any order: see `tests/kit/intent_model.py`.

The stories are the same in every run; CORRAL_MODEL_CASES sets a number of other ones, for a longer look.
"""

import os
from datetime import timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from corral.frontend.backends.decide.backend import BACKEND_VERBS
from corral.frontend.operations.decide.intent import Verb
from tests.kit.intent_model import FleetModel
from tests.kit.intent_model_checks import check_enforcement, check_operations, check_rest, settle
from tests.kit.intent_model_parts import WorkerConduct
from tests.kit.intent_model_removals import NAME, ModelStore
from tests.kit.intent_model_rules import demand, enforce, look_at_rules, start_decided

CASES = int(os.environ.get("CORRAL_MODEL_CASES", "100"))
STEPS = 40

NODES = st.sampled_from(["c", "l"])
VERBS = st.sampled_from(BACKEND_VERBS)
KEYS = st.sampled_from(["echo"])
FRONTENDS = st.integers(0, 1)
PLACES = st.tuples(NODES, st.sampled_from(["echo", NAME]))
SELECTORS = st.sampled_from([{}, {"zone": "a"}])


class Story(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = FleetModel()
        self.store = ModelStore(self.model)

    @rule(
        verb=VERBS,
        key=KEYS,
        nodes=st.lists(NODES, min_size=1, unique=True),
        renew=st.booleans(),
    )
    def somebody_asks(self, verb: Verb, key: str, nodes: list[str], renew: bool) -> None:
        self.model.accept(verb, key, nodes, renew=renew and verb is Verb.INSTALL)

    @rule(key=KEYS, node=NODES, uri=st.sampled_from(["oci://a", "oci://b"]))
    def somebody_installs_by_uri(self, key: str, node: str, uri: str) -> None:
        self.model.accept(Verb.INSTALL, key, [node], uri=uri)

    @rule(place=PLACES)
    def somebody_cancels(self, place: tuple[str, str]) -> None:
        self.model.cancel(place)

    @rule(place=PLACES)
    def somebody_retries(self, place: tuple[str, str]) -> None:
        self.model.retry(place)

    @rule(node=NODES, key=KEYS)
    def a_load_needs_a_backend(self, node: str, key: str) -> None:
        self.model.cold_load(node, key)

    @rule()
    def somebody_writes_the_model(self) -> None:
        self.store.write()

    @rule(number=FRONTENDS)
    def somebody_removes_the_model(self, number: int) -> None:
        self.store.remove(number)

    @rule(number=FRONTENDS, node=NODES)
    def the_model_is_loaded(self, number: int, node: str) -> None:
        self.store.load(number, node)

    @rule(number=FRONTENDS, crash=st.booleans())
    def a_frontend_looks_for_removed_models(self, number: int, crash: bool) -> None:
        self.store.sweep(number, crash_before_forgetting=crash)

    @rule(number=FRONTENDS, node=NODES, deed=st.sampled_from(WorkerConduct))
    def a_model_is_removed_and_loaded_where_that_is_not_known_yet(
        self, number: int, node: str, deed: WorkerConduct
    ) -> None:
        """What single steps hardly ever come to."""
        self._remove_what_was_loaded(number, node)
        self.model.work(node, len(self.model.workers[node].door) - 1, deed)
        if self.model.answers:
            self.model.hear(len(self.model.answers) - 1)
        self.store.load(1 - number, node)

    @rule(number=FRONTENDS, node=NODES, seconds=st.sampled_from([0, 70]))
    def a_frontend_dies_during_a_removal_and_the_model_is_added_again(
        self, number: int, node: str, seconds: int
    ) -> None:
        self._remove_what_was_loaded(number, node)
        self.model.crash(number)
        self.store.write()
        self.store.sweep(1 - number)
        self.model.pass_time(timedelta(seconds=seconds))
        self.store.load(1 - number, node)

    def _remove_what_was_loaded(self, number: int, node: str) -> None:
        self.model.come_back(node)
        self.store.write()
        self.store.sweep(number)
        self.store.load(number, node)
        self.store.remove(number)
        self.model.step(number, (node, NAME))

    @rule(key=KEYS, selector=SELECTORS, uri=st.sampled_from(["", "oci://a", "oci://b"]))
    def a_rule_demands(self, key: str, selector: dict[str, str], uri: str) -> None:
        demand(self.model, key, selector, uri=uri)

    @rule(key=KEYS)
    def a_rule_is_deleted(self, key: str) -> None:
        self.model.rules.pop(key, None)

    @rule(node=NODES, labels=SELECTORS)
    def a_node_is_labelled(self, node: str, labels: dict[str, str]) -> None:
        self.model.workers[node].labels = labels

    @rule(number=FRONTENDS)
    def a_frontend_looks_at_the_rules(self, number: int) -> None:
        look_at_rules(self.model, number)

    @rule(number=FRONTENDS)
    def a_frontend_starts_what_the_rules_lack(self, number: int) -> None:
        start_decided(self.model, number)

    @rule(number=FRONTENDS)
    def a_frontend_enforces_the_rules(self, number: int) -> None:
        enforce(self.model, number)

    @rule(node=NODES, deed=st.sampled_from(WorkerConduct), number=FRONTENDS)
    def a_rule_asks_for_what_somebody_deleted(self, node: str, deed: WorkerConduct, number: int) -> None:
        """What single steps hardly ever come to."""
        demand(self.model, "echo", {})
        self.model.poll(node)
        self.model.pass_time(timedelta(seconds=1))
        enforce(self.model, number)
        started = self.model.started_by_rules
        self.model.step(number, (node, "echo"))
        self.model.work(node, 0, deed)
        if self.model.answers:
            self.model.hear(len(self.model.answers) - 1)
        enforce(self.model, number)
        assert self.model.started_by_rules == started
        self.model.pass_time(timedelta(seconds=1))
        self.model.delete_by_hand((node, "echo"))
        self.model.poll(node)

    @rule(node=NODES)
    def a_node_is_polled(self, node: str) -> None:
        self.model.poll(node)

    @rule(place=PLACES)
    def somebody_deletes_by_hand(self, place: tuple[str, str]) -> None:
        if place[1] != NAME:
            self.model.delete_by_hand(place)

    @rule(number=FRONTENDS, place=PLACES, crash=st.booleans())
    def a_frontend_takes_a_step(self, number: int, place: tuple[str, str], crash: bool) -> None:
        self.model.step(number, place, crash_before_sending=crash)

    @rule(number=FRONTENDS)
    def a_frontend_takes_all_steps(self, number: int) -> None:
        for place in sorted(self.model.stored):
            self.model.step(number, place)

    @rule(first=VERBS, then=VERBS, node=NODES, renew=st.booleans())
    def a_frontend_dies_with_a_request_open_and_people_change_their_minds(
        self, first: Verb, then: Verb, node: str, renew: bool
    ) -> None:
        """What single steps hardly ever come to."""
        self.model.accept(first, "echo", [node], renew=renew and first is Verb.INSTALL)
        self.model.step(0, (node, "echo"))
        self.model.crash(0)
        self.model.pass_time(timedelta(seconds=7))
        self.model.accept(then, "echo", [node])
        self.model.step(1, (node, "echo"))

    @rule(number=FRONTENDS)
    def a_frontend_dies(self, number: int) -> None:
        self.model.crash(number)

    @rule(node=NODES, index=st.integers(0, 5), deed=st.sampled_from(WorkerConduct))
    def a_worker_works(self, node: str, index: int, deed: WorkerConduct) -> None:
        self.model.work(node, index, deed)

    @rule(index=st.integers(0, 5), twice=st.booleans())
    def an_answer_arrives(self, index: int, twice: bool) -> None:
        if self.model.answers:
            self.model.hear(index % len(self.model.answers), twice=twice)

    @rule(index=st.integers(0, 5))
    def an_answer_is_lost(self, index: int) -> None:
        if self.model.answers:
            self.model.answers.pop(index % len(self.model.answers))

    @rule(node=NODES)
    def a_node_goes_away(self, node: str) -> None:
        self.model.go_down(node)

    @rule(node=NODES)
    def a_node_is_announced_offline(self, node: str) -> None:
        self.model.announce_offline(node)

    @rule(node=NODES)
    def a_node_comes_back(self, node: str) -> None:
        self.model.come_back(node)

    @rule()
    def the_tag_moves(self) -> None:
        self.model.move_tag()

    @rule(seconds=st.sampled_from([0.3, 1, 7, 31, 130, 901, 86_400]))
    def time_passes(self, seconds: float) -> None:
        self.model.pass_time(timedelta(seconds=seconds))

    @invariant()
    def operators_are_told_the_truth(self) -> None:
        check_operations(self.model)

    def teardown(self) -> None:
        """Whatever happened: once it stops happening, every disk is as it was last wished, and stays so."""
        for frontend in self.model.frontends:
            self.store.sweep(frontend.number)
        settle(self.model)
        check_rest(self.model)
        self.store.check_rest()
        check_operations(self.model)
        check_enforcement(self.model)


TestStory = Story.TestCase
TestStory.settings = settings(
    max_examples=CASES,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize="CORRAL_MODEL_CASES" not in os.environ,
    database=None,
)
