"""`corral backends confine` and `confined`: what backends may do on nodes."""

from typing import Final

import click

from corral.cli.client import api_path
from corral.cli.connection import connected, open_client
from corral.cli.names import complete_installed
from corral.cli.options import CorralCommand
from corral.cli.output import Column, answer, json_option, plain, print_table, say
from corral.wire.confinement import BackendNetwork, ConfinementReport, PolicyAsk, PolicyView


@click.command("confine", cls=CorralCommand)
@click.argument("backend", shell_complete=complete_installed)
@click.option(
    "--network",
    type=click.Choice([network.value for network in BackendNetwork]),
    help="Where it may connect to. Its own ports listen in any case.",
)
@click.option("--off", is_flag=True, help="Do not confine it. Needs --reason.")
@click.option("--reason", default="", metavar="TEXT", help="Why it is not confined, for the record.")
@click.option("--reset", is_flag=True, help="Take back what was decided: its manifest and the settings count again.")
@json_option
@connected
def confine(backend: str, network: str | None, off: bool, reason: str, reset: bool, as_json: bool) -> None:
    """Decide how a backend is confined, on every node.

    BACKEND is the name that models use. It holds for processes that start from now on; end those that run with
    `corral models unload`. Without a decision a backend is confined as far as each machine allows, with the network of
    its manifest.
    """
    if sum((network is not None, off, reset)) != 1:
        raise click.UsageError("say one of --network, --off and --reset")
    client, path = open_client(), api_path("backend-policies", backend)
    if reset:
        client.delete(path)
        say(f"Backend {backend} is confined as its manifest and the settings of workers say.")
        return
    ask = PolicyAsk(network=network or "", is_confined=not off, reason=reason)
    policy = client.put(path, PolicyView, ask)
    outcome = f"may connect to: {policy.network}" if policy.is_confined else "is not confined any more"
    answer(policy, f"Backend {backend} {outcome}. Processes that run keep what they have.", as_json=as_json)


@click.command("confined", cls=CorralCommand)
@json_option
@connected
def confined(as_json: bool) -> None:
    """List what was decided about the confinement of backends."""
    policies = open_client().get(api_path("backend-policies"), list[PolicyView])
    nothing = "Nothing was decided: backends are confined as their manifests and the settings of workers say."
    print_table(policies, _COLUMNS, nothing=nothing, as_json=as_json)


_COLUMNS: Final[tuple[Column[PolicyView], ...]] = (
    Column(title="BACKEND", cell=lambda policy: plain(policy.backend)),
    Column(title="CONFINED", cell=lambda policy: "yes" if policy.is_confined else "[yellow]no[/]"),
    Column(title="NETWORK", cell=lambda policy: policy.network or "–"),
    Column(title="BY", cell=lambda policy: plain(policy.changed_by)),
    Column(title="REASON", cell=lambda policy: plain(policy.reason)),
)


def confinement_words(report: ConfinementReport) -> list[str]:
    """What a machine gives, in one line, and what it lacks, in one line each."""
    has = [
        f"Landlock {report.landlock}" if report.landlock else "",
        "filtered system calls" if report.filters_calls else "",
        "own users" if report.own_users else "",
        f"cgroup {report.cgroup}" if report.cgroup else "",
        f"limits of {' and '.join(report.limits)}" if report.limits else "",
        f"loopback by {report.loopback}" if report.loopback else "",
    ]
    features = ", ".join(word for word in has if word)
    return [features or "none", *(f"- {sentence}" for sentence in report.missing)]
