import math

import pytest
from assertions import assert_equal, assert_resumes_exactly
from hypothesis import given
from hypothesis import strategies as st

from multidds import Mixture
from multidds.mixture import Replay

SIZES = {"a": 1, "b": 3, "c": 6}
RAMP = [(0.0, Mixture.proportional(SIZES)), (0.5, Mixture.uniform(SIZES))]


def test_the_mixture_moves_at_the_recorded_steps():
    mixture = Mixture.uniform("ab")
    replay = Replay(mixture, [(0, {"a": 0.4, "b": 0.6}), (2, {"a": 0.3, "b": 0.7}), (3, {"a": 0.1, "b": 0.9})])
    assert mixture["a"] == 0.4
    assert [replay.step() for _ in range(4)] == [None, {"a": 0.3, "b": 0.7}, {"a": 0.1, "b": 0.9}, None]
    assert mixture["a"] == 0.1


def test_a_replay_resumes_exactly():
    def make():
        replay = Replay(Mixture.uniform("ab"), [(step, {"a": step / 10, "b": 1 - step / 10}) for step in range(1, 10)])
        return {"replay": replay}, lambda _: replay.step()

    assert_resumes_exactly(make, 9, as_json=True)


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ([(2, {"a": 1.0, "b": 0.0}), (2, {"a": 1.0, "b": 0.0})], "steps.* 2 comes after 2"),
        ([(-1, {"a": 1.0, "b": 0.0})], "steps.* -1"),
        ([(1, {"a": 1.0})], "step 1: 'b' is missing"),
        ([(1, {"a": 1.0, "b": -0.5})], "'b' is -0.5"),
    ],
)
def test_a_bad_history_is_refused(history, message):
    with pytest.raises(ValueError, match=message):
        Replay(Mixture.uniform("ab"), history)


# ---------------------------------------------------------------------------------------------- along points


def mixtures_of(points, steps, every=1):
    """The mixture after 0, 1, 2, ... steps."""
    mixture = Mixture.uniform(SIZES)
    replay = Replay.along(mixture, points, steps, every)
    return [mixture.probabilities] + [replay.step() or mixture.probabilities for _ in range(steps)]


def test_a_ramp_is_a_straight_line_and_then_stays():
    mixtures = mixtures_of(RAMP, 100)
    assert mixtures[0] == Mixture.proportional(SIZES).probabilities
    assert mixtures[25]["a"] == pytest.approx(0.1 + 0.5 * (1 / 3 - 0.1))
    assert mixtures[50] == mixtures[100] == pytest.approx(dict.fromkeys(SIZES, 1 / 3))


def test_two_points_at_one_share_are_a_jump():
    first, second = {"a": 0.5, "b": 0.3, "c": 0.2}, {"a": 0.1, "b": 0.0, "c": 0.9}
    mixtures = mixtures_of([(0.0, first), (0.5, first), (0.5, second)], 10)
    assert_equal(mixtures, [first] * 5 + [second] * 6, tolerance=1e-12)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4), st.integers(1, 20))
def test_every_mixture_on_the_way_sums_to_one(shares, steps):
    points = [(share, Mixture.temperature(SIZES, 1 + i)) for i, share in enumerate(sorted(shares))]
    assert all(math.fsum(mixture.values()) == pytest.approx(1) for mixture in mixtures_of(points, steps))


def test_it_moves_about_a_hundred_times_and_only_when_something_changes():
    replay = Replay.along(Mixture.proportional(SIZES), RAMP, steps=1000)
    assert replay.steps_until_update == 10
    assert [step for step in range(1, 1001) if replay.step() is not None] == list(range(10, 501, 10))
    assert replay.steps_until_update is None


def test_a_replay_along_points_resumes_exactly():
    def make():
        replay = Replay.along(Mixture.uniform(SIZES), RAMP, steps=80, every=3)
        return {"replay": replay}, lambda _: replay.step()

    assert_resumes_exactly(make, 80, stops=(0, 7, 40, 60), as_json=True)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "at least one point"),
        ([(0.5, {"a": 1.0, "b": 0.0, "c": 0.0}), (0.2, {"a": 1.0, "b": 0.0, "c": 0.0})], "rise.* 0.2"),
        ([(1.5, {"a": 1.0, "b": 0.0, "c": 0.0})], "from 0 to 1.* 1.5"),
        ([(0.0, {"a": 0.5, "b": 0.5})], "the point at 0: 'c' is missing"),
        ([(0.0, {"a": 0.5, "b": 0.2, "c": 0.2})], "sum to 0.9"),
    ],
)
def test_bad_points_are_refused(points, message):
    with pytest.raises(ValueError, match=message):
        Replay.along(Mixture.uniform(SIZES), points, steps=10)
