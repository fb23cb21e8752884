"""Does a frontend answer?"""

from corral.cli.doctor.examination import OK, PROBLEM, Examination, finding
from corral.protocol.node_views import Finding


def check(seen: Examination) -> Finding:
    words = seen.frontend
    if words.target is None:
        return finding(
            "frontend",
            PROBLEM,
            f"no frontend is known: there is no up.json in {seen.settings.data}",
            "Start one with `corral up`, or name one with --url or CORRAL_URL.",
        )
    if words.is_there:
        return finding("frontend", OK, f"{words.target.url} answers (from {words.target.origin})")
    trouble = words.trouble.message if words.trouble is not None else "it does not answer"
    return finding("frontend", PROBLEM, trouble, "Start it with `corral up` or `corral frontend`, or correct the URL.")
