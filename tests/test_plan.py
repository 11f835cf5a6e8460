import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multidds.plan import effective, marginal, planned

SIZES = st.lists(st.floats(1, 1e6), min_size=1, max_size=8).map(lambda sizes: {f"d{i}": s for i, s in enumerate(sizes)})


@given(st.floats(1, 1e6), st.floats(0.01, 500), st.floats(0.5, 50))
def test_the_worth_of_a_draw_is_the_derivative_of_the_effective_data(size, passes, worth):
    drawn = size * passes
    h = 1e-5 * drawn
    slope = (math.log(effective(drawn + h, size, worth)) - math.log(effective(drawn - h, size, worth))) / (2 * h)
    assert marginal(drawn, size, worth) == pytest.approx(slope, rel=1e-3, abs=1e-12)


def test_effective_data_are_those_of_the_repetition_law():
    assert effective(70, 100) == 70
    assert effective(100, 100) == 100
    assert effective(16 * 100, 100) == pytest.approx(100 + 100 * 15 * (1 - math.exp(-1)))
    assert effective(1e9, 100) == pytest.approx(1600)  # however often: R* more than there is


@given(SIZES, st.floats(0.01, 200))
def test_one_draw_more_is_worth_the_same_everywhere(sizes, passes):
    examples = passes * sum(sizes.values())
    shares = planned(sizes, examples)
    worths = [marginal(shares[name] * examples, size) for name, size in sizes.items()]
    assert max(worths) == pytest.approx(min(worths), rel=1e-6)
    assert math.fsum(shares.values()) == pytest.approx(1)


@given(SIZES, st.floats(0.01, 200), st.integers(0, 2**31))
def test_no_other_shares_are_better(sizes, passes, seed):
    examples = passes * sum(sizes.values())
    best = planned(sizes, examples)

    def utility(shares):
        return math.fsum(math.log(effective(shares[name] * examples, size)) for name, size in sizes.items())

    rng = random.Random(seed)
    other = {name: p * math.exp(rng.gauss(0, 0.3)) for name, p in best.items()}
    total = math.fsum(other.values())
    assert utility({name: p / total for name, p in other.items()}) <= utility(best) + 1e-9


def test_a_short_training_is_planned_uniform_and_a_long_one_proportional():
    sizes = {"small": 100, "large": 10_000}
    assert planned(sizes, 50)["small"] == pytest.approx(0.5)
    shares = planned(sizes, 1e9)
    assert shares["small"] == pytest.approx(100 / 10_100, rel=0.02)
