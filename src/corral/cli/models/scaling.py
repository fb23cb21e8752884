"""`corral models scale`, `pin`, `load` and `unload`: how many replicas a model has, where, and what is done now."""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import click
from msgspec import UNSET

from corral.base.errors import InvalidInput, NotFound, PeerRefused
from corral.base.words import format_duration, listed, parse_duration
from corral.cli.client import ApiClient, api_path
from corral.cli.connection import connected, open_client
from corral.cli.names import complete_model, complete_node, find_node, find_nodes, nodes_option, read_labels
from corral.cli.operations.plans import plan_option, show_act_plan
from corral.cli.options import CorralCommand, warn
from corral.cli.output import Column, json_option, plain, print_json, print_table, say
from corral.processes.exit_codes import ExitCode
from corral.wire.models import ModelView
from corral.wire.plans import ActPlanView
from corral.wire.refusals import Acknowledged
from corral.wire.scheduling import NamedScheduling, SchedulingFields, SchedulingList, SchedulingPlanAsk, SchedulingView
from corral.wire.view import Loading

_PATH: Final = "/api/v1/scheduling"
_ON_DEMAND: Final[Mapping[str, Any]] = {"min_replicas": 0, "max_replicas": 0, "spread_all": False}
_MEANING: Final = ("min_replicas", "max_replicas", "spread_all", "node_selector", "pinned_nodes", "route_policy")
"""Fields of which a rule must say at least one; one that says how long replicas may be idle also stays."""
_UNLOADED_WITHIN: Final = timedelta(seconds=90)
_LOOK_SECONDS: Final = 0.5
_COMING: Final = frozenset({"reserved", "staging", "loading"})
"""States of replicas that are on their way."""
_SURE_LOOKS: Final = 2
"""Looks in a row that must find nothing under way: one may fall between two steps of a load."""


def counts_text(rule: SchedulingView) -> str:
    """How many replicas a rule wants."""
    if rule.spread_all:
        return "one on every node"
    if not rule.min_replicas and not rule.max_replicas:
        return "when asked"
    if rule.min_replicas == rule.max_replicas:
        return f"exactly {rule.min_replicas}"
    return f"{rule.min_replicas} or more" if not rule.max_replicas else f"{rule.min_replicas} to {rule.max_replicas}"


def places_text(rule: SchedulingView) -> str:
    """The nodes on which a rule allows replicas, in words."""
    labels = [f"{key}={value}" for key, value in sorted(rule.node_selector.items())]
    names = [listed(rule.pinned_names or rule.pinned_nodes)] if rule.pinned_nodes else []
    return ", ".join([*labels, *names]) or "any node"


def idle_text(rule: SchedulingView) -> str:
    """When a rule has idle replicas unloaded; empty where the settings decide."""
    if rule.idle_seconds is None:
        return ""
    return format_duration(timedelta(seconds=rule.idle_seconds)) if rule.idle_seconds else "never"


def rule_text(rule: SchedulingView) -> str:
    """A rule in one line."""
    idle = f", unloaded when idle: {idle_text(rule)}" if rule.idle_seconds is not None else ""
    return f"{counts_text(rule)}, on {places_text(rule)}{idle} (from {rule.source}, by {rule.updated_by})"


_COLUMNS: Final[Sequence[Column[SchedulingView]]] = (
    Column(title="MODEL", cell=lambda rule: plain(rule.model)),
    Column(title="REPLICAS", cell=lambda rule: plain(counts_text(rule))),
    Column(title="LOADED", cell=lambda rule: str(rule.loaded), right=True),
    Column(title="ON", cell=lambda rule: plain(places_text(rule))),
    Column(title="IDLE", cell=lambda rule: idle_text(rule) or "–", least_width=80),
    Column(title="FROM", cell=lambda rule: plain(f"{rule.source} by {rule.updated_by}"), least_width=100),
    Column(title="PROBLEM", cell=lambda rule: plain(rule.problem or "–"), wraps=True),
)


@click.command("rules", cls=CorralCommand)
@json_option
@connected
def list_rules(as_json: bool) -> None:
    """List the models that have a rule, and what is in its way."""
    rules = open_client().get(_PATH, SchedulingList).items
    nothing = "No model has a rule: each is loaded when somebody asks. `corral models scale` makes one."
    print_table(rules, _COLUMNS, nothing=nothing, as_json=as_json)


def _read_idle(context: click.Context, parameter: click.Parameter, value: str | None) -> int | str | None:
    """Seconds; 0 for `never`, and `default` as it is."""
    if value is None or value == "default":
        return value
    if value == "never":
        return 0
    try:
        seconds = round(parse_duration(value).total_seconds())
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(f"{error}; or write never, or default") from error
    if not seconds:
        raise click.BadParameter("is no time; write never if idle replicas shall stay")
    return seconds


@click.command(cls=CorralCommand)
@click.argument("model", shell_complete=complete_model)
@click.argument("replicas", type=click.IntRange(0), required=False)
@click.option("--min", "least", type=click.IntRange(0), help="Have at least so many replicas.")
@click.option("--max", "most", type=click.IntRange(0), help="Have at most so many when they are busy; 0: no limit.")
@click.option("--spread", is_flag=True, help="Have one replica on every node that the model may be on.")
@click.option("--auto", is_flag=True, help="Have it loaded when somebody asks, as without a rule.")
@click.option(
    "--selector", "labels", multiple=True, metavar="KEY=VALUE", help="Only on nodes with this label; several: all."
)
@click.option("--anywhere", is_flag=True, help="On any node: neither labels nor pins any more.")
@click.option(
    "--idle",
    metavar="DURATION",
    callback=_read_idle,
    help="Unload replicas above the minimum that were idle for so long, such as 10m; never; or default, as set.",
)
@plan_option
@json_option
@connected
def scale(
    model: str,
    replicas: int | None,
    least: int | None,
    most: int | None,
    spread: bool,
    auto: bool,
    labels: tuple[str, ...],
    anywhere: bool,
    idle: int | str | None,
    only_plan: bool,
    as_json: bool,
) -> None:
    """Say how many replicas a model should have, and where.

    A plain number keeps exactly so many. 0 unloads the model now; the next request loads it again. With --min and --max
    their number follows the load. Without any of these, the rule is shown. A rule takes effect at once and stays.
    """
    forms = [replicas is not None, least is not None or most is not None, spread, auto]
    if sum(forms) > 1:
        raise InvalidInput("REPLICAS", "--min/--max, --spread and --auto exclude each other; give one of them")
    client = open_client()
    fields = _counts(replicas, least, most, spread=spread, auto=auto)
    if labels and anywhere:
        raise InvalidInput("--selector", "and --anywhere exclude each other")
    if labels:
        fields["node_selector"] = read_labels(labels, "--selector")
    if anywhere:
        fields |= {"node_selector": {}, "pinned_nodes": []}
    if idle is not None:
        fields["idle_seconds"] = None if idle == "default" else idle
    if only_plan:
        show_act_plan(_plan(client, model, fields, unloads=replicas == 0), as_json=as_json)
        return
    rule = _patched(client, model, fields) if fields else client.get(api_path("scheduling", model), SchedulingView)
    if replicas == 0:
        _unloaded(client, model)
        rule = _shown(client, rule)
    print_json(rule) if as_json else _say_rule(rule)


def _counts(replicas: int | None, least: int | None, most: int | None, *, spread: bool, auto: bool) -> dict[str, Any]:
    """The fields of a rule that these arguments mean."""
    if replicas is not None:
        return {**_ON_DEMAND, "min_replicas": replicas, "max_replicas": replicas}
    if spread:
        return {**_ON_DEMAND, "spread_all": True}
    if auto:
        return {**_ON_DEMAND, "idle_seconds": None}
    limits = {"min_replicas": least, "max_replicas": most}
    counts: dict[str, Any] = {name: value for name, value in limits.items() if value is not None}
    return {**counts, "spread_all": False} if counts else {}


def _plan(client: ApiClient, model: str, fields: Mapping[str, Any], *, unloads: bool) -> ActPlanView:
    """What it would mean to change these fields of the rule of a model, and to unload it."""
    try:
        view = client.get(api_path("scheduling", model), SchedulingView)
        current = {name: getattr(view, name) for name in SchedulingFields.__struct_fields__}
    except NotFound:
        current = {}
    rule = NamedScheduling(model=model, **{**current, **fields})
    says = any(getattr(rule, name) not in (UNSET, False, 0, "", [], {}) for name in _MEANING)
    says |= rule.idle_seconds not in (UNSET, None)
    ask = SchedulingPlanAsk(
        rules=[rule] if says else [], remove=[] if says else [model], unload=[model] if unloads else []
    )
    return client.post(f"{_PATH}/plan", ActPlanView, ask)


def _patched(client: ApiClient, model: str, fields: Mapping[str, Any]) -> SchedulingView:
    """Change the rule of a model. One that says nothing any more is deleted."""
    path = api_path("scheduling", model)
    rule = client.patch(path, SchedulingView, dict(fields))
    says = rule.min_replicas or rule.max_replicas or rule.spread_all or rule.node_selector or rule.pinned_nodes
    if not says and rule.idle_seconds is None and not rule.route_policy:
        client.delete(path)
    return rule


def _shown(client: ApiClient, rule: SchedulingView) -> SchedulingView:
    """The rule as it is now; what it was if there is none any more."""
    try:
        return client.get(api_path("scheduling", rule.model), SchedulingView)
    except NotFound:
        return rule


def _say_rule(rule: SchedulingView) -> None:
    idle = f"; unloaded when idle: {idle_text(rule)}" if rule.idle_seconds is not None else ""
    say(f"{rule.model}: {counts_text(rule)}, on {places_text(rule)}{idle}.")
    say(f"{rule.loaded} loaded, {rule.loading} being loaded.")
    if rule.problem:
        warn([rule.problem])


@click.command(cls=CorralCommand)
@click.argument("model", shell_complete=complete_model)
@nodes_option("A node that replicas may be on; may be given several times.")
@json_option
@connected
def pin(model: str, nodes: tuple[str, ...], as_json: bool) -> None:
    """Pin a model to nodes.

    Its replicas are on these and no others; those that are elsewhere are moved. To keep a model loaded, wherever it is,
    there is `corral models keep`.
    """
    if not nodes:
        raise InvalidInput("--node", "is missing: name the nodes; to keep it loaded, use `corral models keep`")
    client = open_client()
    ids = [node.id for node in find_nodes(client, nodes)]
    rule = _patched(client, model, {"pinned_nodes": ids})
    print_json(rule) if as_json else _say_rule(rule)


@click.command(cls=CorralCommand)
@click.argument("model", shell_complete=complete_model)
@json_option
@connected
def unpin(model: str, as_json: bool) -> None:
    """Let a model be on any node again that its labels allow."""
    rule = _patched(open_client(), model, {"pinned_nodes": []})
    print_json(rule) if as_json else _say_rule(rule)


_one_node = click.option("--node", metavar="NODE", shell_complete=complete_node, help="On this node.")


@click.command(cls=CorralCommand)
@click.argument("model", shell_complete=complete_model)
@_one_node
@click.option("--wait/--no-wait", default=True, help="Wait until it is loaded, or cannot be; the default.")
@json_option
@connected
def load(model: str, node: str | None, wait: bool, as_json: bool) -> int:
    """Load a model now, instead of with the first request.

    With a node, it gets a replica there. Ends with 0 when it is loaded, 1 when it cannot be, 2 when that goes on.
    """
    client = open_client()
    node_id = find_node(client, node).id if node else ""
    state = client.post("/api/v1/model-loads", Loading, {"name": model, "node": node_id})
    view = _awaited(client, model, node_id) if wait else client.get(api_path("models", model), ModelView)
    is_over = view.state == "failed" or (wait and not _is_loaded(view, node_id))
    if as_json:
        print_json(view)
    elif _is_loaded(view, node_id):
        say(f"{model} is loaded on {listed([replica.node for replica in view.replicas if replica.state == 'loaded'])}.")
    elif is_over:
        raise PeerRefused(_why_not_loaded(view, node), status=409)
    else:
        say(f"{model} is being loaded ({state.state}).")
    if _is_loaded(view, node_id):
        return ExitCode.OK
    return ExitCode.FAILED if is_over else ExitCode.STILL_RUNNING


def _awaited(client: ApiClient, model: str, node_id: str) -> ModelView:
    """The model when it is loaded, on the node if one is named, or will not be: a load only prefers its node."""
    idle_looks = 0
    while True:
        view = client.get(api_path("models", model), ModelView)
        idle_looks = 0 if not node_id or _is_under_way(view, node_id) else idle_looks + 1
        if _is_loaded(view, node_id) or view.state == "failed" or idle_looks >= _SURE_LOOKS:
            return view
        time.sleep(_LOOK_SECONDS)


def _is_under_way(view: ModelView, node_id: str) -> bool:
    """Whether a load is open that may go to the node, or a replica is on its way there."""
    if view.load_job is not None and view.load_job.state != "failed":
        return True
    return any(replica.state in _COMING and replica.node_id == node_id for replica in view.replicas)


def _why_not_loaded(view: ModelView, node: str | None) -> str:
    if view.load_job is not None and view.load_job.state == "failed":
        return f"{view.name} could not be loaded: {view.load_job.message}"
    if node is None:
        return f"{view.name} could not be loaded"
    where = [replica.node for replica in view.replicas if replica.state == "loaded"]
    is_now = f"it is loaded on {listed(where)}" if where else "nothing loads it any more"
    return f"{view.name} was not loaded on {node}: {is_now}"


def _is_loaded(view: ModelView, node_id: str) -> bool:
    return any(replica.state == "loaded" and node_id in ("", replica.node_id) for replica in view.replicas)


@click.command(cls=CorralCommand)
@click.argument("model", shell_complete=complete_model)
@_one_node
@json_option
@connected
def unload(model: str, node: str | None, as_json: bool) -> None:
    """Unload a model, everywhere or on one node.

    The requests that it answers end first. The next request loads it again.
    """
    client = open_client()
    target = find_node(client, node) if node else None
    done = _unloaded(client, model, "" if target is None else target.id)
    where = "" if target is None else f" on {target.name}"
    print_json(done) if as_json else say(f"{model} is unloaded{where}.")


def _unloaded(client: ApiClient, model: str, node_id: str = "") -> Acknowledged:
    body = {"name": model, "node": node_id}
    return client.post("/api/v1/model-unloads", Acknowledged, body, patience=_UNLOADED_WITHIN)
