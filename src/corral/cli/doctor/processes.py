"""Do the processes that `up.json` names still run?"""

from corral.cli.doctor.examination import OK, PROBLEM, WARNING, Examination, finding
from corral.processes.up_file import NAME, UpPids
from corral.wire.node_views import Finding


def check(seen: Examination) -> Finding:
    if seen.up is None:
        return finding("processes", OK, f"no `corral up` runs in {seen.settings.data}")
    named = names(seen.up.pids)
    dead = [name for name, pid in named.items() if not is_alive(pid)]
    if not dead:
        return finding("processes", OK, f"all {len(named)} processes of `corral up` run")
    if len(dead) == len(named):
        left = seen.settings.data / NAME
        return finding(
            "processes", WARNING, f"none of the processes in {left} runs", "Start again with `corral up`; it tidies up."
        )
    summary = f"{', '.join(dead)} of `corral up` does not run" if len(dead) == 1 else f"{', '.join(dead)} do not run"
    return finding("processes", PROBLEM, summary, "They are started again within seconds; if not, see the log.")


def names(pids: UpPids) -> dict[str, int]:
    workers = {f"worker-{number}": pid for number, pid in enumerate(pids.workers, start=1)}
    gateways = {f"gateway-{number}": pid for number, pid in enumerate(pids.gateways, start=1)}
    return {"nats": pids.nats, "frontend": pids.frontend, "control": pids.control, **gateways, **workers}


def is_alive(pid: int) -> bool:
    """A process that ended and was not reaped yet is dead, too."""
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):
        return False
