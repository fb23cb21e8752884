"""Can every model be loaded that somebody wrote a file for, as often as its rule says? Can galleries be read?"""

from corral.base.words import listed
from corral.frontend.api.route import AdminContext
from corral.frontend.diagnosis.doctor import OK, PROBLEM, WARNING
from corral.frontend.serving.decide.load_job import LoadState
from corral.wire.nodes import Finding


async def check_models(context: AdminContext) -> Finding:
    catalogue = context.models.catalogue.catalogue
    jobs = await context.serving.loads.furthest_jobs()
    failed = [name for name, job in sorted(jobs.items()) if job.state is LoadState.FAILED and name in catalogue.models]
    if failed:
        return Finding(
            check="models",
            level=PROBLEM,
            summary=f"{len(failed)} of {len(catalogue.models)} could not be loaded: {listed(failed)}",
            remedy=f"`corral models show {failed[0]}` tells why.",
        )
    problem = context.serving.adapted.problem
    needy = {replica.model for replica in await context.serving.replicas.living() if replica.needs_adapter}
    if problem and needy:
        return Finding(
            check="models",
            level=PROBLEM,
            summary=f"{listed(sorted(needy))} cannot be asked on workers of LocalAI's: {problem}",
            remedy="The log of the adapter tells more; replicas on workers of Corral's go on answering.",
        )
    if catalogue.problems:
        passed_over = sorted({problem.source for problem in catalogue.problems})
        return Finding(
            check="models",
            level=WARNING,
            summary=f"files were passed over: {listed(passed_over)}",
            remedy="`corral models list` tells why.",
        )
    if odd := sorted({spec.source or spec.name for spec in catalogue.models.values() if spec.warnings}):
        return Finding(
            check="models",
            level=WARNING,
            summary=f"keys that nobody knows are in {listed(odd)}",
            remedy="`corral models list` tells which, and what was probably meant.",
        )
    lone = [file.path for file in context.models.catalogue.offered]
    hint = f"; weights that no model uses: {listed(lone)}" if lone else ""
    return Finding(check="models", level=OK, summary=f"{len(catalogue.models)} known, none failed to load{hint}")


async def check_scaling(context: AdminContext) -> Finding:
    """Whether models have the replicas that rules of scheduling want."""
    rules = await context.serving.snapshots.rules()
    if not rules:
        return Finding(check="scaling", level=OK, summary="no model has a rule of scheduling")
    counts = await context.serving.scaling.counts()
    short = {name: counts[name].problem for name in sorted(rules) if name in counts and counts[name].problem}
    if short:
        name = next(iter(short))
        return Finding(
            check="scaling",
            level=WARNING,
            summary=f"the rules of {listed(list(short))} cannot be satisfied now; {name}: {short[name]}",
            remedy=f"`corral why {name}` tells more. Make room, add a machine, or change it: corral models scale.",
        )
    return Finding(check="scaling", level=OK, summary=f"{len(rules)} rules of scheduling are satisfied, or about to be")


async def check_model_galleries(context: AdminContext) -> Finding:
    """What the last readings found: nobody is asked for this."""
    readings = context.models.galleries.known
    bad = [reading for reading in readings if reading.is_stale or not reading.is_known]
    if bad:
        first = bad[0]
        age = "an older copy is used" if first.is_known else "its models cannot be found"
        return Finding(
            check="model galleries",
            level=WARNING,
            summary=f"{listed([reading.source.name for reading in bad])} cannot be read; {age}: {first.problem}",
            remedy="Allow the connection, name a mirror, or leave it out of the setting gallery.model_galleries.",
        )
    if not readings:
        return Finding(check="model galleries", level=OK, summary="nobody has looked for a model yet")
    entries = sum(len(reading.gallery.entries) for reading in readings)
    return Finding(check="model galleries", level=OK, summary=f"{len(readings)} read, {entries} models")
