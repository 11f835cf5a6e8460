import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multidds import Mixture
from multidds.mixture.limits import Limits, within

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
    tracker = Limits(max_passes={"a": 4.0}).tracker("ab", sizes={"a": 10, "b": 100}, draws=100, steps=10)
    mixture = Mixture({"a": 0.5, "b": 0.5})
    for step in (1, 2, 2, 3, 4, 5):  # a step counts once
        tracker.count(step, mixture)
    assert tracker.applied({"a": 0.5, "b": 0.5}, step=5)["a"] == pytest.approx(0.3)  # 40 - 25 of the last 50
    for step in (6, 7, 8, 9):
        tracker.count(step, mixture)
    assert tracker.applied({"a": 0.5, "b": 0.5}, step=9) == {"a": 0.0, "b": 1.0}
    assert tracker.applied({"a": 0.5, "b": 0.5}, step=10) == {"a": 0.5, "b": 0.5}  # nothing is left to limit


def test_a_resumed_tracker_has_counted_what_the_other_has():
    def tracker(names="ab"):
        return Limits(max_passes=4.0).tracker(names, sizes={"a": 10, "b": 100}, draws=100, steps=10)

    one, other = tracker(), tracker()
    one.count(1, Mixture({"a": 0.5, "b": 0.5}))
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert other.state_dict() == one.state_dict() != tracker().state_dict()
    with pytest.raises(ValueError, match="'b' is unknown"):
        tracker("a").load_state_dict(one.state_dict())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bounds": {"x": (0, 1)}}, "bounds: 'x' is unknown"),
        ({"bounds": {"a": (0.5, 0.2)}}, r"bounds.*'a' has \(0.5, 0.2\)"),
        ({"bounds": {"a": (0.6, 1), "b": (0.6, 1)}}, "bounds: the lower bounds sum to 1.2"),
        ({"bounds": {"a": (0, 0.3), "b": (0, 0.3)}}, "bounds: the upper bounds sum to 0.6"),
        ({"max_passes": 0}, "max_passes.* 0"),
        ({"max_passes": {"a": -1}}, "max_passes.*'a' is -1"),
        ({"max_passes": {"x": 1}}, "max_passes: 'x' is unknown"),
    ],
)
def test_limits_that_cannot_hold_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Limits(**settings).tracker("ab", None, {"a": 1, "b": 1}, 10, 10)


def test_passes_that_cannot_be_counted_are_refused():
    with pytest.raises(ValueError, match="max_passes.* no draws, steps"):
        Limits(max_passes=4).tracker("ab", sizes={"a": 1, "b": 1})
