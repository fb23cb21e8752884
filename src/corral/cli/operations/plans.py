"""What an act would do, as commands show it: with --plan instead of doing it, and before they ask for confirmation."""

import click

from corral.base.words import printable
from corral.cli.backends.tables import plan_table
from corral.cli.output import console, print_json, say, show
from corral.frontend.backends.decide.plan_words import counts_of, notes, plan_text
from corral.processes.exit_codes import ExitCode
from corral.wire.operation_views import Plan
from corral.wire.plans import ActPlanView

plan_option = click.option("--plan", "only_plan", is_flag=True, help="Only show what would happen, and do nothing.")


def show_act_plan(plan: ActPlanView, *, as_json: bool) -> None:
    """Print a plan on standard output: as JSON for machines, or its lines for people."""
    if as_json:
        print_json(plan)
        return
    for line in plan.text.splitlines():
        say(line)


def tell_act_plan(plan: ActPlanView) -> None:
    """Print a plan on standard error, before the question whether to continue."""
    for line in plan.text.splitlines():
        click.echo(printable(line), err=True)


def show_operation_plan(plan: Plan, verb: str, *, as_json: bool) -> ExitCode:
    """Print the plan of an operation; the exit code says whether a rule is in its way."""
    if not plan.text:  # of a frontend that tells only the items
        plan.counts = counts_of(plan.items)
        plan.text = plan_text(plan, verb)
    if as_json:
        print_json(plan)
    elif console().is_terminal:
        show(plan_table(plan.items, verb))
        for note in notes(plan, verb):
            say(note)
    else:
        for line in plan.text.splitlines():
            say(line)
    return ExitCode.FAILED if plan.rules else ExitCode.OK
