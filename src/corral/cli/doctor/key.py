"""Does the frontend accept our key?"""

from corral.base.errors import AccessDenied
from corral.cli.doctor.examination import OK, PROBLEM, Examination, finding
from corral.wire.node_views import Finding

_REMEDY = "Set CORRAL_KEY or --key-file to an admin key; `corral keys reset-admin` makes one on the frontend's machine."


def check(seen: Examination) -> Finding | None:
    words = seen.frontend
    if isinstance(words.trouble, AccessDenied):
        return finding("key", PROBLEM, words.trouble.message, _REMEDY)
    return finding("key", OK, "the frontend accepts it") if words.report is not None else None
