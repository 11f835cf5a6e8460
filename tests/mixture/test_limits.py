import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multidds.mixture.limits import check_bounds, passes_left, within

pytestmark = [
    pytest.mark.claim(
        "The method",
        "the default rule is the documented formula; noise comes from the halves of a probe; what is cut and "
        "what is not; resume; limits; pace",
    )
]


@st.composite
def bounded(draw):
    weights = draw(st.lists(st.floats(1e-3, 1), min_size=2, max_size=6))
    n = len(weights)
    probabilities = {f"d{i}": w / math.fsum(weights) for i, w in enumerate(weights)}
    lows = draw(st.lists(st.floats(0, 1 / n), min_size=n, max_size=n))
    highs = [low + draw(st.floats(0, 1)) * (1 - low) for low in lows]
    return probabilities, {f"d{i}": pair for i, pair in enumerate(zip(lows, highs, strict=True))}


@given(bounded())
def test_bounds_hold_and_what_lies_within_keeps_its_proportions(case):
    probabilities, bounds = case
    found = within(probabilities, bounds)
    assert math.fsum(found.values()) == pytest.approx(1)
    if math.fsum(high for _, high in bounds.values()) <= 1:
        return
    for name, (low, high) in bounds.items():
        assert low - 1e-9 <= found[name] <= high + 1e-9
    free = [name for name, (low, high) in bounds.items() if low + 1e-9 < found[name] < high - 1e-9]
    factors = [found[name] / probabilities[name] for name in free]
    if factors:
        assert max(factors) == pytest.approx(min(factors), rel=1e-6)


def test_without_bounds_nothing_changes():
    assert within({"a": 0.25, "b": 0.75}, {}) == {"a": 0.25, "b": 0.75}


def test_passes_that_are_left_become_an_upper_bound():
    left = passes_left({"a": 10, "b": 100}, {"a": 4.0}, {"a": 30, "b": 0}, left=50)
    assert left == {"a": (0.0, 0.2)}
    assert passes_left({"a": 10}, {"a": 4.0}, {"a": 70}, left=50) == {"a": (0.0, 0.0)}


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"x": (0, 1)}, "'x' is unknown"),
        ({"a": (0.5, 0.2)}, r"but 'a' has \(0.5, 0.2\)"),
        ({"a": (0.6, 1), "b": (0.6, 1)}, "the lower bounds sum to 1.2"),
        ({"a": (0, 0.3), "b": (0, 0.3)}, "the upper bounds sum to 0.6"),
    ],
)
def test_bounds_that_cannot_hold_are_refused(bounds, message):
    with pytest.raises(ValueError, match=message):
        check_bounds("Balancer: bounds", ("a", "b"), bounds)
