"""Priorities: weights of dev sets from their losses."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multidds.probes import priorities

LOSSES = st.dictionaries(st.text(min_size=1, max_size=3), st.sampled_from([0.5, 1.0, 2.0, 3.5]), min_size=1)


@given(LOSSES)
def test_low_and_high_take_the_worse_and_the_better_half_rounded_up(losses):
    half = math.ceil(len(losses) / 2)
    for rule, sign in ((priorities.low, -1), (priorities.high, 1)):
        weights = rule(losses)
        chosen = {name for name, weight in weights.items() if weight > 0}
        assert chosen == set(sorted(losses, key=lambda name: (sign * losses[name], name))[:half])
        assert all(weights[name] == 1 / half for name in chosen)
        assert set(weights) == set(losses)
    assert set(priorities.regular(losses).values()) == {1 / len(losses)}


def test_weights_are_normalised_and_missing_names_count_nothing():
    losses = {"a": 1.0, "b": 2.0, "c": 3.0}
    assert priorities.weights_of({"a": 1, "c": 3}, losses) == {"a": 0.25, "b": 0.0, "c": 0.75}
    assert priorities.weights_of(lambda losses: {"b": losses["b"]}, losses) == {"a": 0.0, "b": 1.0, "c": 0.0}


@pytest.mark.parametrize(
    ("priority", "message"),
    [
        ("lwo", "priority.*'regular', 'low', 'high'.*'lwo'"),
        ({"x": 1.0}, "'x'.*'a', 'b'"),
        ({"a": -1.0}, "'a' is -1.0"),
        ({"a": math.nan}, "'a' is nan"),
        ({"a": 0.0}, "weight above 0"),
        ({}, "weight above 0"),
    ],
)
def test_a_bad_priority_is_refused(priority, message):
    with pytest.raises(ValueError, match=message):
        priorities.check(priority, ("a", "b"))
    if isinstance(priority, dict):
        with pytest.raises(ValueError, match=message):
            priorities.weights_of(lambda losses: priority, {"a": 1.0, "b": 1.0})


def test_a_priority_of_another_type_is_refused():
    with pytest.raises(TypeError, match="priority.*int"):
        priorities.check(3, ("a",))
    with pytest.raises(TypeError, match="priority.*NoneType"):
        priorities.weights_of(lambda losses: None, {"a": 1.0})
