"""Does a frontend answer?"""

from corral.base.errors import CorralError
from corral.cli.client import FrontendFailed, Unreachable
from corral.cli.doctor.examination import OK, PROBLEM, Examination, finding
from corral.cli.frontend_target import FrontendTarget
from corral.wire.node_views import Finding


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
    return finding("frontend", PROBLEM, _summary(words.target, words.trouble), _remedy(words.trouble))


def _summary(target: FrontendTarget, trouble: CorralError | None) -> str:
    """Without the advice to ask doctor."""
    match trouble:
        case FrontendFailed():
            return f"{target.url} answers, but: {trouble.said}"
        case Unreachable():
            return f"no answer from {target.url} (from {target.origin}): {trouble.reason}"
    return trouble.message if trouble is not None else "it does not answer"


def _remedy(trouble: CorralError | None) -> str:
    if isinstance(trouble, FrontendFailed):
        return "What died there is started again within seconds; if not, see the log of the frontend."
    return "Start it with `corral up` or `corral frontend`, or correct the URL."
