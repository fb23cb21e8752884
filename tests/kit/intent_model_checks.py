"""What must hold in the model of a fleet once faults have ended: disks are as last wished, nothing is left to do."""

from datetime import timedelta

from corral.frontend.operations.decide.intent import Intent, IntentState, Verb
from corral.frontend.operations.decide.operation import OperationState, TargetStatus, state_of
from corral.frontend.rules.decide import is_met
from tests.kit.intent_model import FleetModel
from tests.kit.intent_model_parts import WorkerConduct
from tests.kit.intent_model_rules import enforce


def settle(model: FleetModel) -> None:
    """Faults end: every node is there, every worker is honest, blocked intents are retried; all work is done."""
    for node in model.workers:
        model.come_back(node)
    for place in model.stored:
        model.retry(place)
    for _ in range(80):
        if not _settle_once(model):
            return
    raise AssertionError(f"does not come to rest: {[intent for intent in model.stored.values() if _is_open(intent)]}")


def _settle_once(model: FleetModel) -> bool:
    started = model.started_by_rules
    for node in model.workers:
        model.poll(node)
    enforce(model, 0)
    _work_off(model)
    return started != model.started_by_rules or any(_is_open(intent) for intent in model.stored.values())


def _work_off(model: FleetModel) -> None:
    for place in sorted(model.stored):
        model.step(0, place)
    for worker in model.workers.values():
        while worker.door:
            model.work(worker.name, 0, WorkerConduct.HONEST)
    while model.answers:
        model.hear(0)
    model.pass_time(timedelta(minutes=1))


def _is_open(intent: Intent) -> bool:
    return intent.state is IntentState.OPEN


def check_rest(model: FleetModel) -> None:
    """When no work is left: the disks are as last wished, and stay so for a day without a request."""
    for place, intent in model.stored.items():
        if intent.state is IntentState.SATISFIED and place not in model.touched:
            assert model.is_true(place, intent), f"{place} is not as it was last wished: {intent}"
    _check_rules(model)
    started, sent = model.started_by_rules, dict(model.sent)
    disks = {name: dict(worker.disk) for name, worker in model.workers.items()}
    model.pass_time(timedelta(days=1))
    for node in model.workers:
        model.poll(node)
    enforce(model, 1)
    for place in model.stored:
        model.step(1, place)
    assert (model.started_by_rules, model.sent) == (started, sent)
    assert {name: worker.disk for name, worker in model.workers.items()} == disks


def check_enforcement(model: FleetModel) -> None:
    """When no work is left: what a rule demands cannot be deleted, and comes back once if somebody takes it away."""
    for rule in model.rules.values():
        for node in [worker.name for worker in model.workers.values() if rule.applies_to(worker.labels)]:
            assert not model.accept(Verb.DELETE, rule.backend, [node]), "a rule did not hinder a delete"
            model.delete_by_hand((node, rule.backend))
            started = model.started_by_rules
            settle(model)
            _check_rules(model)
            assert model.started_by_rules == started + 1


def _check_rules(model: FleetModel) -> None:
    for rule in model.rules.values():
        for worker in model.workers.values():
            met = is_met(rule, rule.backend, worker.report(model.now))
            assert met or not rule.applies_to(worker.labels), f"{worker.name} lacks what {rule} demands"


def check_operations(model: FleetModel) -> None:
    """What operators see follows from what is stored."""
    for operation, targets in model.targets.items():
        state = state_of(targets.values())
        live = [intent for intent in model.stored.values() if intent.operation_id == operation]
        if state in (OperationState.DONE, OperationState.CANCELLED):
            assert all(intent.state is not IntentState.OPEN for intent in live)
        if state is OperationState.DONE:
            assert any(target.status is TargetStatus.SUCCESS for target in targets.values())
