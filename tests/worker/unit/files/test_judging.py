"""LocalAI's table of ranges, row by row."""

import pytest

from corral.wire.file_transfer import ContentRange
from corral.worker.files.judging import Present, Verdict, judge

ONE, OTHER = "1" * 64, "2" * 64

FIRST = ContentRange(0, 99, 1000)
NEXT = ContentRange(100, 199, 1000)
ALL = ContentRange(0, 999, 1000)

NOTHING = Present()
BEGUN = Present(size=100, target=ONE)
BEGUN_WITHOUT_HASH = Present(size=100)
FULL_BUT_WRONG = Present(size=1000, target=ONE)
FINISHED = Present(size=1000, hash=ONE)


@pytest.mark.parametrize(
    ("wanted", "digest", "present", "verdict"),
    [
        (FIRST, ONE, NOTHING, Verdict.APPEND),
        (FIRST, "", NOTHING, Verdict.APPEND),
        (FIRST, ONE, Present(size=0, target=ONE), Verdict.APPEND),
        (FIRST, OTHER, Present(size=0, target=ONE), Verdict.APPEND),
        (FIRST, OTHER, BEGUN, Verdict.RESTART),
        (FIRST, "", BEGUN, Verdict.RESTART),
        (FIRST, ONE, BEGUN, Verdict.ELSEWHERE),
        (ALL, ONE, BEGUN, Verdict.ELSEWHERE),
        (FIRST, ONE, BEGUN_WITHOUT_HASH, Verdict.RESTART),
        (FIRST, "", BEGUN_WITHOUT_HASH, Verdict.RESTART),
        (FIRST, ONE, FINISHED, Verdict.ELSEWHERE),
        (ALL, ONE, FINISHED, Verdict.ELSEWHERE),
        (FIRST, OTHER, FINISHED, Verdict.RESTART),
        (FIRST, "", FINISHED, Verdict.RESTART),
        (FIRST, ONE, Present(size=1000), Verdict.RESTART),
        (ALL, ONE, FULL_BUT_WRONG, Verdict.RESTART),
        (ALL, ONE, Present(size=1001, target=ONE), Verdict.RESTART),
        (NEXT, ONE, BEGUN, Verdict.APPEND),
        (NEXT, "", BEGUN, Verdict.APPEND),
        (NEXT, OTHER, BEGUN, Verdict.CONFLICT),
        (NEXT, OTHER, Present(size=150, target=ONE), Verdict.CONFLICT),
        (NEXT, ONE, BEGUN_WITHOUT_HASH, Verdict.APPEND),
        (NEXT, ONE, Present(size=99, target=ONE), Verdict.ELSEWHERE),
        (NEXT, ONE, Present(size=101, target=ONE), Verdict.ELSEWHERE),
        (NEXT, ONE, NOTHING, Verdict.ELSEWHERE),
        (NEXT, ONE, FINISHED, Verdict.ELSEWHERE),
        (NEXT, OTHER, FINISHED, Verdict.ELSEWHERE),
    ],
)
def test_a_range_is_judged_by_the_table(wanted: ContentRange, digest: str, present: Present, verdict: Verdict) -> None:
    assert judge(wanted, digest, present) is verdict
