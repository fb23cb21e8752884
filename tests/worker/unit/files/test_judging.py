"""LocalAI's table of ranges, row by row."""

from typing import Any

import pytest

from corral.wire.files import ContentRange
from corral.worker.files.receiving import RangeVerdict, judge

ONE, OTHER = "1" * 64, "2" * 64
PENDING, OTHER_PENDING = "pending:" + ONE, "pending:" + OTHER

FIRST = ContentRange(0, 99, 1000)
NEXT = ContentRange(100, 199, 1000)
ALL = ContentRange(0, 999, 1000)

NOTHING: dict[str, Any] = {}
BEGUN = {"size": 100, "target": ONE}
BEGUN_WITHOUT_HASH = {"size": 100}
BEGUN_WITHOUT_DIGEST = {"size": 100, "target": PENDING}
FULL_BUT_WRONG = {"size": 1000, "target": ONE}
FINISHED = {"size": 1000, "stored": ONE}


@pytest.mark.parametrize(
    ("wanted", "digest", "present", "verdict"),
    [
        (FIRST, ONE, NOTHING, RangeVerdict.APPEND),
        (FIRST, "", NOTHING, RangeVerdict.APPEND),
        (FIRST, ONE, {"size": 0, "target": ONE}, RangeVerdict.APPEND),
        (FIRST, OTHER, {"size": 0, "target": ONE}, RangeVerdict.APPEND),
        (FIRST, OTHER, BEGUN, RangeVerdict.RESTART),
        (FIRST, "", BEGUN, RangeVerdict.RESTART),
        (FIRST, ONE, BEGUN, RangeVerdict.ELSEWHERE),
        (ALL, ONE, BEGUN, RangeVerdict.ELSEWHERE),
        (FIRST, ONE, BEGUN_WITHOUT_HASH, RangeVerdict.RESTART),
        (FIRST, "", BEGUN_WITHOUT_HASH, RangeVerdict.RESTART),
        (FIRST, ONE, FINISHED, RangeVerdict.ELSEWHERE),
        (ALL, ONE, FINISHED, RangeVerdict.ELSEWHERE),
        (FIRST, OTHER, FINISHED, RangeVerdict.RESTART),
        (FIRST, "", FINISHED, RangeVerdict.RESTART),
        (FIRST, ONE, {"size": 1000}, RangeVerdict.RESTART),
        (ALL, ONE, FULL_BUT_WRONG, RangeVerdict.RESTART),
        (ALL, ONE, {"size": 1001, "target": ONE}, RangeVerdict.RESTART),
        (NEXT, ONE, BEGUN, RangeVerdict.APPEND),
        (NEXT, "", BEGUN, RangeVerdict.APPEND),
        (NEXT, OTHER, BEGUN, RangeVerdict.CONFLICT),
        (NEXT, OTHER, {"size": 150, "target": ONE}, RangeVerdict.CONFLICT),
        (NEXT, ONE, BEGUN_WITHOUT_HASH, RangeVerdict.APPEND),
        (NEXT, ONE, {"size": 99, "target": ONE}, RangeVerdict.ELSEWHERE),
        (NEXT, ONE, {"size": 101, "target": ONE}, RangeVerdict.ELSEWHERE),
        (NEXT, ONE, NOTHING, RangeVerdict.ELSEWHERE),
        (NEXT, ONE, FINISHED, RangeVerdict.ELSEWHERE),
        (NEXT, OTHER, FINISHED, RangeVerdict.ELSEWHERE),
        (FIRST, PENDING, NOTHING, RangeVerdict.APPEND),
        (NEXT, PENDING, BEGUN_WITHOUT_DIGEST, RangeVerdict.APPEND),
        (NEXT, ONE, BEGUN_WITHOUT_DIGEST, RangeVerdict.APPEND),
        (FIRST, ONE, BEGUN_WITHOUT_DIGEST, RangeVerdict.RESTART),
        (FIRST, OTHER_PENDING, BEGUN_WITHOUT_DIGEST, RangeVerdict.RESTART),
        (NEXT, OTHER_PENDING, BEGUN_WITHOUT_DIGEST, RangeVerdict.CONFLICT),
        (NEXT, PENDING, BEGUN, RangeVerdict.CONFLICT),
        (FIRST, PENDING, FINISHED, RangeVerdict.RESTART),
    ],
)
def test_a_range_is_judged_by_the_table(
    wanted: ContentRange, digest: str, present: dict[str, Any], verdict: RangeVerdict
) -> None:
    assert judge(wanted, digest, **present) is verdict
