"""Are this program and the frontend of one version?"""

from corral import __version__
from corral.cli.doctor.examination import OK, WARNING, Examination, finding
from corral.wire.node_views import Finding


def check(seen: Examination) -> Finding | None:
    if seen.frontend.version is None:
        return None
    theirs = seen.frontend.version.version
    if theirs == __version__:
        return finding("version", OK, f"{theirs} here and there")
    return finding(
        "version", WARNING, f"{__version__} here, {theirs} at the frontend", "Install the frontend's version here."
    )
