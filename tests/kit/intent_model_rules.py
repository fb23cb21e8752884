"""Rules in the model of a fleet: what they demand, and frontends that decide what is missing and start it later."""

from corral.frontend.backends.decide.backend import Artefact, Wish, artefact_of
from corral.frontend.operations.decide.intent import IntentState, Verb
from corral.frontend.rules.decide import FleetRule, is_missing
from tests.kit.intent_model import FleetModel
from tests.kit.intent_model_parts import Decision, IntentKey


def demand(model: FleetModel, key: str, selector: dict[str, str], *, uri: str = "") -> None:
    artefact = Artefact(backend=key, uri=uri, name=key if uri else "")
    model.rules[key] = FleetRule(name=key, artefact=artefact, selector=selector, made_by="", made_at=model.now)


def look_at_rules(model: FleetModel, number: int) -> None:
    """Decide what is missing. The decision does not know what happens before it is started."""
    decided = []
    for rule in model.rules.values():
        workers = [worker for worker in model.workers.values() if rule.applies_to(worker.labels)]
        stored = {worker.name: model.stored.get((worker.name, rule.backend)) for worker in workers}
        lacking = [
            worker.name for worker in workers if is_missing(rule, rule.backend, stored[worker.name], worker.last_report)
        ]
        if lacking:
            seen = {node: _generation(model, (node, rule.backend)) for node in lacking}
            decided.append(Decision(rule=rule, seen=seen))
    model.frontends[number].decided = decided


def start_decided(model: FleetModel, number: int) -> None:
    """Start what was decided, as the database does: only if nothing else has been wanted since."""
    frontend = model.frontends[number]
    for decision in frontend.decided:
        key = decision.rule.backend
        if all(_generation(model, (node, key)) == seen for node, seen in decision.seen.items()):
            is_awaited = any(_is_awaited(model, decision.rule, node) for node in decision.seen)
            assert not is_awaited, "a rule asks for what is awaited"
            model.started_by_rules += 1
            model.start(Wish(verb=Verb.INSTALL, key=key, artefact=decision.rule.artefact), list(decision.seen))
    frontend.decided = []


def enforce(model: FleetModel, number: int) -> None:
    look_at_rules(model, number)
    start_decided(model, number)
    look_at_rules(model, number)
    assert not model.frontends[number].decided, "a rule starts again what it has just started"


def _is_awaited(model: FleetModel, rule: FleetRule, node: str) -> bool:
    """Whether the same is under way there, or failed for good and waits for people."""
    intent = model.stored.get((node, rule.backend))
    if intent is None or intent.verb is not Verb.INSTALL or artefact_of(intent.payload).uri != rule.artefact.uri:
        return False
    return intent.state in (IntentState.OPEN, IntentState.BLOCKED)


def _generation(model: FleetModel, place: IntentKey) -> int:
    intent = model.stored.get(place)
    return 0 if intent is None else intent.generation
