"""The share never falls, and the time left is right to 20 % from a third of a run on, whatever the run is like."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.observers.pace import sized, time_of_the_last
from headrace.observers.run_parts import UnderWay

from .streams import Stream, drawn

ROUNDING = 1.0  # seconds: what is shown is whole seconds


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    return drawn(draw(st.randoms(use_true_random=False)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(run=streams())
def test_the_share_never_falls_and_the_time_left_is_right_from_a_third_on(run: Stream) -> None:
    whole = run.events()[-1][0]
    before = 0.0
    for at, share, left in run.play():
        assert before <= share <= 1.0
        before = share
        if whole / 3 <= at:
            assert left is not None
            assert abs(left - (whole - at)) <= 0.2 * (whole - at) + ROUNDING, (at, left, whole)


def test_the_last_shards_fall_to_the_workers_as_they_will() -> None:
    under_way, waiting = sized(
        [UnderWay(0, 50, 100, 10.0), UnderWay(1, 0, -1, 10.0)], 4, 550.0, (100, 100, 300, 100)
    )
    assert [each.of for each in under_way] == [100, 100] and waiting == [300.0, 100.0]
    assert time_of_the_last(under_way, waiting, workers=2, rate=10.0, now=10.0) == 35.0
    assert time_of_the_last(under_way, waiting, workers=2, rate=10.0, now=12.0) == 33.0
    assert time_of_the_last(under_way, waiting, workers=3, rate=10.0, now=10.0) == 30.0
    assert time_of_the_last([], [], workers=2, rate=10.0, now=10.0) == 0.0


def test_sizes_that_do_not_fit_any_more_are_not_used() -> None:
    """Shards were divided, or fewer rows are left than were planned."""
    begun = [UnderWay(0, 10, -1, 0.0)]
    assert sized(begun, 5, 190.0, (100, 100)) == ([UnderWay(0, 10, 40, 0.0)], [40.0] * 4)
    assert sized([UnderWay(0, 10, 60, 0.0)], 3, 150.0, (100, 100, 100))[1] == [50.0, 50.0]
    assert sized([], 0, 0.0, ()) == ([], []) and sized([], 2, 20.0, (-1, -1))[1] == [10.0, 10.0]
