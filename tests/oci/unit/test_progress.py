"""One scale for fetching and unpacking."""

import itertools
from datetime import timedelta
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as some

from corral.base.tasks import running
from corral.oci.orders import PullProgress, PullReporter, Scale, words_of
from corral.wire.backends import Phase
from tests.kit.clock import ManualClock


def test_bytes_are_those_of_the_download_and_the_share_is_that_of_all_the_work() -> None:
    scale = Scale()
    scale.begin("echo", {0: 100, 1: 300}, fetched={0: 100, 1: 300})
    scale.enter(Phase.DOWNLOADING)
    scale.fetched(0, 100)
    scale.unpacked(0, 50)

    reading = scale.reading()

    assert (reading.current_bytes, reading.total_bytes, reading.percentage) == (100, 400, 18.75)
    assert (reading.layer, reading.layers, reading.phase) == (1, 2, "downloading")


def test_what_is_here_already_is_only_unpacked() -> None:
    scale = Scale()
    scale.begin("layout", {0: 100}, fetched={})
    scale.fetched(0, 100)

    assert scale.reading().total_bytes == 100
    assert scale.reading().current_bytes == 0


@given(
    some.lists(
        some.tuples(
            some.sampled_from(["fetched", "unpacked", "begin", "size"]), some.integers(0, 2), some.integers(0, 500)
        )
    )
)
def test_it_never_goes_back(steps: list[tuple[str, int, int]]) -> None:
    """Not when a layer starts over, not when its size turns out, not when a mirror begins anew."""
    scale = Scale()
    scale.begin("first", {0: 100, 1: 50, 2: 7}, fetched={0: 100, 1: 50, 2: 7})
    shares, percentages, sequences = [Fraction(0)], [0.0], [0]
    for kind, layer, number in steps:
        if kind == "begin":
            scale.begin("mirror", {0: number, 1: 10, 2: 10}, fetched={0: number})
        else:
            getattr(scale, kind)(layer, number)
        reading = scale.reading()
        percentages.append(reading.percentage)
        if reading.total_bytes:
            shares.append(Fraction(reading.current_bytes, reading.total_bytes))
            assert reading.current_bytes <= reading.total_bytes
        sequences.append(reading.sequence)

    assert all(later >= earlier for earlier, later in itertools.pairwise(shares))
    known = [one for one in percentages if one]
    assert known == sorted(known)
    assert sequences == sorted(set(sequences))


async def test_it_is_told_four_times_a_second_and_only_when_it_changed(clock: ManualClock) -> None:
    told: list[PullProgress] = []
    scale = Scale()
    reporter = PullReporter(scale, told.append, clock)
    scale.begin("echo", {0: 1000}, fetched={0: 1000})
    async with running(reporter.run(), name="progress"):
        await clock.until_sleeping(1)
        for position in range(1, 100):
            scale.fetched(0, position)
        assert len(told) == 1
        await clock.advance(timedelta(milliseconds=250))
        assert [one.current_bytes for one in told] == [0, 99]
        await clock.advance(timedelta(seconds=5))
        assert len(told) == 2
    scale.fetched(0, 500)

    reporter.flush()

    assert told[-1].current_bytes == 500
    assert [one.sequence for one in told] == sorted({one.sequence for one in told})


def test_every_word_has_a_name_in_it() -> None:
    def words(phase: Phase, name: str = "quay.io/a/b:c") -> str:
        return words_of(PullProgress(sequence=1, phase=phase, name=name, layer=2, layers=3), "oci://quay.io/a/b:c")

    assert words(Phase.RESOLVING, name="") == "Resolving oci://quay.io/a/b:c"
    assert words(Phase.RESOLVING) == "Resolving quay.io/a/b:c"
    assert words(Phase.DOWNLOADING) == "Downloading 2/3 quay.io/a/b:c"
    assert words(Phase.EXTRACTING) == "Extracting quay.io/a/b:c"
    assert words(Phase.VERIFYING) == "Verifying quay.io/a/b:c"
