import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multidds.mixture.limits import Limits, within

pytestmark = pytest.mark.claim("The method", "bounds of shares and of passes hold for every rule")


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
    limits, p = Limits(max_passes={"a": 4.0}), {"a": 0.5, "b": 0.5}

    def applied(drawn, left):
        return limits.applied(p, sizes={"a": 10, "b": 100}, drawn={"a": drawn, "b": drawn}, left=left)

    assert applied(drawn=25, left=50)["a"] == pytest.approx(0.3)  # 40 - 25 of the last 50
    assert applied(drawn=45, left=10) == {"a": 0.0, "b": 1.0}
    assert applied(drawn=50, left=0) == p  # nothing is left to limit


def test_within_a_group_shares_keep_their_proportions():
    p, groups = {"a": 0.1, "b": 0.3, "c": 0.4, "d": 0.2}, {"a": "g", "b": "g", "c": "h"}

    def applied(**bounds):
        return Limits(bounds, groups=groups).applied(p)

    assert applied(g=(0, 0.2)) == pytest.approx({"a": 0.05, "b": 0.15, "c": 0.4 * 0.8 / 0.6, "d": 0.2 * 0.8 / 0.6})
    assert applied(g=(0.6, 0.6), c=(0, 0.1)) == pytest.approx({"a": 0.15, "b": 0.45, "c": 0.1, "d": 0.3})
    assert applied(g=(0, 1)) == pytest.approx(p)


@given(bounded(), st.floats(0, 1), st.floats(0, 1))
def test_bounds_of_groups_and_of_datasets_hold_together(case, low, room):
    probabilities, bounds = case
    groups = dict.fromkeys(list(probabilities)[::2], "g")
    bounds = bounds | {"g": (low, low + room * (1 - low))}
    limits = Limits(bounds, groups=groups)
    try:
        limits.check(tuple(probabilities))
    except ValueError as error:
        assert "bounds" in str(error)
        return
    shares = limits.applied(probabilities)
    assert math.fsum(shares.values()) == pytest.approx(1)
    sums = shares | {"g": math.fsum(shares[name] for name in groups)}
    assert all(low - 1e-6 <= sums[name] <= high + 1e-6 for name, (low, high) in bounds.items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bounds": {"x": (0, 1)}}, "bounds: 'x' is unknown"),
        ({"bounds": {"a": (0.5, 0.2)}}, r"bounds.*'a' has \(0.5, 0.2\)"),
        ({"bounds": {"a": (0.6, 1), "b": (0.6, 1)}}, "lower bounds sum to 1.2"),
        ({"bounds": {"a": (0, 0.3), "b": (0, 0.2), "c": (0, 0.1)}}, "upper bounds sum to 0.6"),
        ({"bounds": {"g": (0.5, 0.4)}}, "'g' has"),
        ({"bounds": {"g": (0.5, 0.6), "a": (0, 0.1)}}, r"'g' has \(0.5, 0.6\).* 0 to 0.1"),
        ({"bounds": {"g": (0, 0.1), "h": (0, 0.4)}}, "upper bounds sum to 0.5"),
        ({"bounds": {"g": (0.6, 1), "h": (0.6, 1)}}, "lower bounds sum to 1.2"),
        ({"max_passes": 0}, "max_passes.* 0"),
        ({"max_passes": {"a": -1}}, "max_passes.*'a' is -1"),
        ({"max_passes": {"x": 1}}, "max_passes: 'x' is unknown"),
        ({"groups": {"x": "g"}}, "groups: 'x' is unknown"),
        ({"groups": {"a": ""}}, "groups.*'a' is in ''"),
        ({"groups": {"a": 1}}, "groups.*'a' is in 1"),
        ({"groups": {"a": "b"}}, "group 'b' has the name of a dataset"),
    ],
)
def test_limits_that_cannot_hold_are_refused(settings, message):
    settings = {"groups": {"a": "g", "b": "h", "c": "h"}} | settings
    with pytest.raises(ValueError, match=message):
        Limits(**settings).check("abc", dict.fromkeys("abc", 1), 10, 10)


def test_passes_that_cannot_be_counted_are_refused():
    with pytest.raises(ValueError, match="max_passes.* no draws, steps"):
        Limits(max_passes=4).check("ab", sizes={"a": 1, "b": 1})
