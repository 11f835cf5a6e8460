import math

import pytest
from assertions import assert_resumes_exactly
from hypothesis import given
from hypothesis import strategies as st

from multidds import Mixture
from multidds.mixture.schedule import Schedule, along

SIZES = {"a": 1, "b": 3, "c": 6}
RAMP = [(0.0, Mixture.proportional(SIZES)), (0.5, Mixture.uniform(SIZES))]


def test_a_ramp_is_a_straight_line_and_then_stays():
    mixture = Mixture.uniform(SIZES)
    schedule = Schedule(mixture, RAMP, steps=100, every=1)
    assert mixture.probabilities == Mixture.proportional(SIZES).probabilities
    seen = []
    for _ in range(100):
        schedule.step()
        seen.append(mixture.probabilities)
    assert seen[24]["a"] == pytest.approx(0.1 + 0.5 * (1 / 3 - 0.1))
    assert seen[49] == seen[99] == pytest.approx(dict.fromkeys(SIZES, 1 / 3))


def test_two_points_at_one_share_are_a_jump():
    five, one = {"a": 0.5, "b": 0.5}, {"a": 0.1, "b": 0.9}
    points = [(0.0, five), (0.5, five), (0.5, one)]
    assert along(points, 0.499) == pytest.approx(five)
    assert along(points, 0.5) == one
    assert along(points, 1.0) == one


@given(st.floats(0, 1))
def test_every_point_on_the_way_is_a_mixture(done):
    points = [(share, mixture.probabilities) for share, mixture in RAMP]
    assert math.fsum(along(points, done).values()) == pytest.approx(1)


def test_it_moves_about_a_hundred_times_and_only_when_something_changes():
    mixture = Mixture.proportional(SIZES)
    schedule = Schedule(mixture, RAMP, steps=1000)
    moves = [step for step in range(1, 1001) if schedule.step() is not None]
    assert moves == list(range(10, 501, 10))
    assert schedule.steps_until_update == 10


def test_a_resumed_schedule_goes_on_exactly():
    def make():
        schedule = Schedule(Mixture.uniform(SIZES), RAMP, steps=80, every=3)
        return {"schedule": schedule}, lambda _: (schedule.step(), schedule.mixture.probabilities)

    assert_resumes_exactly(make, 80, stops=(0, 7, 40, 60), as_json=True)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "there must be at least one point"),
        ([(0.5, {"a": 1.0, "b": 0.0, "c": 0.0}), (0.2, {"a": 1.0, "b": 0.0, "c": 0.0})], "must rise from 0 to 1"),
        ([(1.5, {"a": 1.0, "b": 0.0, "c": 0.0})], "but one is 1.5"),
        ([(0.0, {"a": 0.5, "b": 0.5})], "the point at 0: 'c' is missing"),
        ([(0.0, {"a": 0.5, "b": 0.2, "c": 0.2})], "must sum to 1"),
    ],
)
def test_points_that_are_none_are_refused(points, message):
    with pytest.raises(ValueError, match=message):
        Schedule(Mixture.uniform(SIZES), points, steps=10)
