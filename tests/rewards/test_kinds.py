"""Rewards as objects: settings that can be compared and printed, and those that cannot be."""

import math

import pytest

from multidds.rewards import Cosine, FromTable, MeanSlope, MovingAverage, StabilizedCosine, multidds_s

KINDS = (StabilizedCosine, Cosine, MovingAverage, lambda **options: FromTable(multidds_s, **options))


def test_a_reward_is_settings():
    reward = MovingAverage(decay=0.5, ahead=0.1)
    assert reward == MovingAverage(0.5, ahead=0.1) != MovingAverage(0.5)
    assert "decay=0.5, ahead=0.1" in repr(reward)
    with pytest.raises(AttributeError):
        reward.decay = 0.1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ahead", [0.0, -1.0, math.nan, math.inf])
def test_a_step_ahead_that_is_none_is_refused(kind, ahead):
    with pytest.raises(ValueError, match=f"ahead.*{ahead}"):
        kind(ahead=ahead)


@pytest.mark.parametrize("table", ["big", 0, True, 2.5])
def test_a_table_of_no_size_is_refused(table):
    for kind in KINDS[:3]:
        with pytest.raises(ValueError, match=f"table.*{table}"):
            kind(table=table)
    with pytest.raises(ValueError, match=f"sketch.*{table}"):
        FromTable(multidds_s, sketch=table)


@pytest.mark.parametrize("decay", [1.0, -0.1, math.nan])
def test_a_decay_that_forgets_nothing_or_more_is_refused(decay):
    with pytest.raises(ValueError, match=f"decay.*{decay}"):
        MovingAverage(decay)


@pytest.mark.parametrize(("kind", "word"), [(FromTable, "function"), (MeanSlope, "losses")])
def test_what_is_no_function_is_refused(kind, word):
    with pytest.raises(TypeError, match=f"{word}.*int"):
        kind(3)
