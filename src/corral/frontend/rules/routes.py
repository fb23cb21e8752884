"""Fleet rules: `/api/v1/fleet-rules`, changed as one set that nobody overwrites by accident."""

from collections import Counter
from typing import NamedTuple

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import InvalidInput
from corral.frontend.access.decide import Permission
from corral.frontend.api.plans import STALE
from corral.frontend.api.route import AdminContext, Caller, RouteSpec, answer, no_content, read_body
from corral.frontend.backends.decide.drift import BackendFix, Drift
from corral.frontend.operations.decide.operation import TargetStatus
from corral.frontend.operations.decide.reasons import sentence
from corral.frontend.operations.routes.native import planned_view
from corral.frontend.operations.shapes import operation_view
from corral.frontend.rules.decide import FleetRule, SetChange, demanded, revision_of
from corral.frontend.rules.enforcer import Prune, RulePlace
from corral.frontend.rules.plan_words import rules_plan_text, selector_text
from corral.frontend.rules.service import ANY_REVISION, Diff, RulesChanged, RuleStanding
from corral.wire.fleet_rules import (
    AppliedRules,
    DriftFixView,
    DriftList,
    DriftView,
    PlannedActView,
    RuleChanges,
    RulesAsk,
    RuleSetView,
    RulesPlan,
    RuleView,
    StaleRulesPlan,
    UnmetView,
)
from corral.wire.go_json import decode, format_time
from corral.wire.operation_views import OperationAsk
from corral.wire.plans import PlanError, plan_hash

_BAD = (TargetStatus.ERROR, TargetStatus.BLOCKED)


class AskedRules(NamedTuple):
    """A set of rules that somebody wants, and which plan of it they have seen."""

    rules: list[FleetRule]
    prune: Prune
    plan_hash: str


async def list_rules(context: AdminContext, request: Request, caller: Caller) -> Response:
    standings = await context.rules.service.show()
    revision = revision_of(standing.rule for standing in standings)
    view = RuleSetView(revision=revision, items=[_rule_view(standing) for standing in standings])
    return answer(view, headers={"ETag": f'"{revision}"'})


async def put_rules(context: AdminContext, request: Request, caller: Caller) -> Response:
    revision = request.headers.get("if-match", "").strip().strip('"')
    if not revision:
        raise InvalidInput("If-Match", "is missing: name the revision that you have seen, or * for whatever is there")
    request_rules = await _asked(context, request, caller)
    if not request_rules.plan_hash:
        return await _put(context, caller, request_rules, revision)
    diff = await _diff(context, caller, request_rules)
    is_any = revision == ANY_REVISION
    if not is_any and revision != diff.revision:
        raise RulesChanged(f"the fleet rules have the revision {diff.revision} by now, not {revision}")
    if _hash(diff, request_rules) == request_rules.plan_hash:
        try:
            return await _put(context, caller, request_rules, diff.revision)
        except RulesChanged:
            if not is_any:
                raise
            diff = await _diff(context, caller, request_rules)
    return answer(StaleRulesPlan(error=PlanError(), plan=_plan_view(diff, request_rules)), 409)


async def _put(context: AdminContext, caller: Caller, rule_set: AskedRules, revision: str) -> Response:
    applied = await context.rules.service.put(
        rule_set.rules,
        revision=revision,
        prune=rule_set.prune,
        by=caller.name,
        may_trust=caller.can(Permission.BACKENDS_TRUST),
    )
    revision = revision_of(applied.change.rules)
    operations = [
        operation_view(operation, context.operations.progress.look(operation), context.clock.monotonic())
        for operation in applied.operations
    ]
    changes, doubts = _changes(applied.change), dict(applied.doubts)
    view = AppliedRules(revision=revision, changes=changes, operations=operations, doubts=doubts)
    return answer(view, headers={"ETag": f'"{revision}"'})


async def plan(context: AdminContext, request: Request, caller: Caller) -> Response:
    rule_set = await _asked(context, request, caller)
    return answer(_plan_view(await _diff(context, caller, rule_set), rule_set))


async def _diff(context: AdminContext, caller: Caller, rule_set: AskedRules) -> Diff:
    may_trust = caller.can(Permission.BACKENDS_TRUST)
    return await context.rules.service.plan(rule_set.rules, prune=rule_set.prune, may_trust=may_trust)


def _hash(diff: Diff, rule_set: AskedRules) -> str:
    """The hash of the rules now, the rules after the change, and what the change would ask of which node."""
    acts = sorted(
        [act.verb.value, act.backend, act.rule, plan.node.node.id, bool(plan.hindrance), plan.is_reached]
        for act in diff.acts
        for plan in act.planned
    )
    return plan_hash([diff.revision, revision_of(diff.change.rules), rule_set.prune.value, acts])


def _plan_view(diff: Diff, rule_set: AskedRules) -> RulesPlan:
    acts = [
        PlannedActView(
            verb=act.verb.value,
            backend=act.backend,
            rule=act.rule,
            nodes=[planned_view(planned) for planned in act.planned],
        )
        for act in diff.acts
    ]
    unmet = [
        UnmetView(
            rule=place.rule.name,
            node_name=place.seen.node.name,
            status=place.standing.value,
            operation="" if place.intent is None else place.intent.operation_id,
            message=_message(place),
        )
        for place in diff.unmet
    ]
    view = RulesPlan(
        changes=_changes(diff.change), acts=acts, unmet=unmet, hash=_hash(diff, rule_set), doubts=dict(diff.doubts)
    )
    texts = {rule.name: f"{rule.backend} on {selector_text(rule.selector)}" for rule in diff.change.rules}
    view.text = rules_plan_text(view, texts)
    return view


async def delete_rule(context: AdminContext, request: Request, caller: Caller) -> Response:
    may_trust = caller.can(Permission.BACKENDS_TRUST)
    await context.rules.service.delete(request.path_params["name"], by=caller.name, may_trust=may_trust)
    return no_content()


async def _asked(context: AdminContext, request: Request, caller: Caller) -> AskedRules:
    body = decode(await read_body(request, context.config.max_body), RulesAsk)
    if body.prune not in list(Prune):
        words = ", ".join(repr(prune.value) for prune in Prune)
        raise InvalidInput("prune", f"is {body.prune[:50]!r}; say one of {words}")
    rules = [
        FleetRule(
            name=rule.name,
            artefact=demanded(backend=rule.backend, uri=rule.uri, alias=rule.alias),
            selector=rule.labels,
            made_by=caller.name,
            made_at=context.clock.now(),
        )
        for rule in body.rules
    ]
    return AskedRules(rules, Prune(body.prune), body.plan_hash or "")


def _rule_view(standing: RuleStanding) -> RuleView:
    rule, places = standing.rule, standing.places
    return RuleView(
        name=rule.name,
        backend=rule.backend,
        labels=dict(rule.selector),
        uri=rule.artefact.uri,
        alias=rule.artefact.alias,
        made_by=rule.made_by,
        made_at=format_time(rule.made_at),
        counts=dict(sorted(Counter(place.standing.value for place in places).items())),
        unmet={place.seen.node.name: _message(place) for place in places if place.standing in _BAD},
        doubt=standing.doubt,
    )


def _message(place: RulePlace) -> str:
    return "" if place.intent is None else sentence(place.intent.reason)


def _changes(change: SetChange) -> RuleChanges:
    return RuleChanges(added=list(change.added), changed=list(change.changed), removed=list(change.removed))


async def list_drift(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(DriftList(items=[_drift_view(drift) for drift in await context.rules.drift.find()]))


def _drift_view(drift: Drift) -> DriftView:
    node = drift.seen.node
    return DriftView(
        node_id=node.id,
        node_name=node.name,
        backend=drift.backend,
        kind=drift.kind.value,
        wanted=drift.wanted,
        has=drift.has,
        since=None if drift.since is None else format_time(drift.since),
        why=drift.why,
        rule=drift.rule,
        operation_id=drift.operation_id,
        fix=None if drift.fix is None else _fix_view(drift, drift.fix),
    )


def _fix_view(drift: Drift, fix: BackendFix) -> DriftFixView:
    ask = OperationAsk(
        verb=fix.verb.value,
        backend=fix.ref.backend,
        uri=fix.ref.uri,
        name=fix.ref.name,
        alias=fix.ref.alias,
        force=fix.force,
        nodes=[drift.seen.node.id],
    )
    return DriftFixView(label=f"{fix.verb.value.capitalize()} {drift.backend} on {drift.seen.node.name}", operation=ask)


_ADMIN = RouteSpec(
    method="GET",
    path="/api/v1/fleet-rules",
    handler=list_rules,
    access=Permission.RULES_READ,
    summary="What the fleet shall have, and how far its nodes are.",
    gives=RuleSetView,
    codes={200: "all rules, by name; `ETag` is their revision"},
)
_BAD_SET = {400: "something is missing or malformed; `field` names it"}

ROUTES = [
    RouteSpec(
        method="GET",
        path="/api/v1/drift",
        handler=list_drift,
        access=Permission.BACKENDS_READ,
        summary="What nodes do not have as people or fleet rules asked for it: what is wanted, what is there, and why.",
        gives=DriftList,
        codes={200: "a list, by node and backend; empty when all is as it was asked for"},
    ),
    _ADMIN,
    replace(
        _ADMIN,
        method="PUT",
        handler=put_rules,
        access=Permission.RULES_ACT,
        summary="Put a set of rules in place of the one that `If-Match` names. The same set again changes nothing. "
        "What follows from it is started at once, and from then on whenever something is missing.",
        takes=RulesAsk,
        gives=AppliedRules,
        refusals={409: StaleRulesPlan},
        codes={
            200: "stored, with all that follows",
            **_BAD_SET,
            409: STALE,
            412: "the rules are not of this revision any more",
        },
    ),
    replace(
        _ADMIN,
        method="POST",
        path="/api/v1/fleet-rules/plan",
        handler=plan,
        access=Permission.RULES_READ,
        summary="What a set of rules would lead to, and where it would be blocked; nothing is stored or sent.",
        takes=RulesAsk,
        gives=RulesPlan,
        codes={200: "what would be done, for each backend", **_BAD_SET},
    ),
    replace(
        _ADMIN,
        method="DELETE",
        path="/api/v1/fleet-rules/{name}",
        handler=delete_rule,
        access=Permission.RULES_ACT,
        summary="Demand a backend no longer. Where it is installed, it stays.",
        gives=None,
        codes={204: "deleted", 404: "no rule has this name", 412: "others change the rules all the time"},
    ),
]
