import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multidds import Mixture
from multidds.mixture.planned import MAX_PASSES, NamedRelevance, effective, planned

POWER = 0.5


@st.composite
def trainings(draw, most=5):
    """(sizes [n], draws, weights [K], relevance [K, n], repetition)"""
    n, k = draw(st.integers(1, most)), draw(st.integers(1, most))
    sizes = np.array(draw(st.lists(st.floats(5, 1e5), min_size=n, max_size=n)))
    weights = np.array(draw(st.lists(st.floats(0.05, 1), min_size=k, max_size=k)))
    rows = st.lists(st.one_of(st.just(0.0), st.floats(0.05, 1)), min_size=n, max_size=n)
    relevance = np.array(draw(st.lists(rows, min_size=k, max_size=k)))
    relevance[np.arange(k), draw(st.lists(st.integers(0, n - 1), min_size=k, max_size=k))] = 1.0
    return sizes, draw(st.floats(10, 1e6)), weights / weights.sum(), relevance, draw(st.floats(0.5, 40))


def utility(shares, sizes, draws, weights, relevance, repetition):
    return weights @ np.log(relevance @ effective(shares * draws, sizes, repetition) ** POWER)


def least(sizes):
    return 0.1 * np.minimum(1 / len(sizes), sizes / sizes.sum())


@pytest.mark.claim("The method", "the plan is the optimum: by the Lagrange condition, brute force and closed forms")
@given(trainings())
def test_one_draw_more_is_worth_the_same_everywhere(training):
    """The Lagrange condition: slopes are one number inside the limits, less at floors, more at caps."""
    sizes, draws, weights, relevance, repetition = training
    shares = planned(sizes, draws, weights, relevance, repetition)
    step = 1e-6

    def slope(i):
        moved = shares.copy()
        moved[i] *= 1 + step
        return (utility(moved, *training) - utility(shares, *training)) / (shares[i] * step)

    most = sizes / draws * max(MAX_PASSES, draws / sizes.sum())
    floored, capped = shares <= least(sizes) * (1 + 1e-6), shares >= most * (1 - 1e-6)
    # Where a size is passed the slope jumps: a kink of D'.
    kink = np.abs(shares * draws / sizes - 1) < 1e-4
    slopes = np.array([slope(i) for i in range(len(sizes))])
    inside = ~floored & ~capped & ~kink
    assert shares.sum() == pytest.approx(1)
    if inside.any():
        price = slopes[inside].mean()
        assert slopes[inside] == pytest.approx(price, rel=1e-3, abs=1e-6)
        assert (slopes[floored & ~capped] <= price * (1 + 1e-3) + 1e-6).all()
        assert (slopes[capped & ~floored] >= price * (1 - 1e-3) - 1e-6).all()


@given(trainings(most=3))
def test_no_other_mixture_is_better(training):
    sizes, draws, weights, relevance, repetition = training
    best = utility(planned(sizes, draws, weights, relevance, repetition, cap=False), *training)
    steps = np.linspace(0, 1, 21)
    for a in steps:
        for b in steps[steps <= 1 - a + 1e-9]:
            other = np.maximum(np.array([a, b, 1 - a - b])[: len(sizes)], 1e-12)
            other /= other.sum()
            if (other >= least(sizes)).all():
                assert utility(other, *training) <= best + 1e-7


@given(trainings(), st.floats(0.1, 10))
def test_the_scale_of_a_row_changes_nothing(training, factor):
    sizes, draws, weights, relevance, repetition = training
    scaled = relevance.copy()
    scaled[0] *= factor
    assert planned(sizes, draws, weights, scaled, repetition) == pytest.approx(
        planned(sizes, draws, weights, relevance, repetition), abs=1e-7
    )


def test_one_dev_set_without_repetition_draws_in_proportion_to_the_square_of_relevance():
    relevance = np.array([[1.0, 0.5, 0.25]])
    shares = planned([1e9] * 3, 100, [1.0], relevance, cap=False)
    assert shares == pytest.approx(relevance[0] ** 2 / (relevance**2).sum(), rel=1e-6)


def test_a_dataset_that_helps_nobody_gets_the_floor():
    relevance = np.array([[1.0, 0.7, 0.0], [0.7, 1.0, 0.0]])
    shares = planned([1000, 2000, 30_000], 5000, [0.5, 0.5], relevance)
    assert shares[2] == pytest.approx(0.1 / 3)


def test_identity_is_the_best_mixture_without_transfer():
    """Every dataset serves its own dev set alone: more of it is worth its share of log D, whatever the power."""
    sizes = np.array([50.0, 400.0, 9000.0])
    shares = planned(sizes, 4000, np.full(3, 1 / 3), np.eye(3), cap=False)
    drawn = shares * 4000
    passes = np.maximum(drawn / sizes - 1, 0)
    marginal = np.exp(-passes / 15) / effective(drawn, sizes, 15.0)
    assert marginal == pytest.approx(marginal.mean(), rel=1e-6)


def test_no_dataset_is_planned_for_more_than_sixteen_passes_or_those_of_proportional():
    for repetition, passes in ((5, 16), (15, 16), (30, 31)):  # unless repeated examples are known to be worth more
        shares = planned([10, 1000, 1000], 20_000, [1.0], np.array([[1.0, 0.0, 0.0]]), repetition)
        assert shares[0] * 20_000 / 10 == pytest.approx(passes)
    shares = planned([10, 10], 2000, [1.0], np.array([[1.0, 0.5]]))
    assert shares.max() * 2000 / 10 == pytest.approx(100)


@given(st.integers(1, 6), st.integers(0, 10**6))
def test_relevance_by_names_is_its_matrix(n, seed):
    random = np.random.default_rng(seed)
    own, factors = random.integers(-1, n, size=4), random.uniform(size=n)
    matrix = np.where(own[:, None] < 0, 1.0, np.where(np.arange(n) == own[:, None], 1.0, 0.22)) * factors
    named = NamedRelevance(own, 0.22, factors)
    columns, rows = random.uniform(size=n), random.uniform(size=4)
    assert named @ columns == pytest.approx(matrix @ columns)
    assert rows @ named == pytest.approx(rows @ matrix)


def test_the_order_of_names_changes_nothing():
    sizes = {"a": 10, "b": 300, "c": 7000}
    turned = dict(reversed(sizes.items()))
    assert Mixture.planned(sizes, 3000).probabilities == dict(
        reversed(Mixture.planned(turned, 3000).probabilities.items())
    )


def test_short_trainings_are_nearer_to_uniform_than_long_ones():
    sizes = {"a": 100, "b": 10_000}
    shares = [Mixture.planned(sizes, draws)["a"] for draws in (100, 10_000, 1_000_000)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(0.5, abs=0.05)


def test_weights_of_dev_sets_move_the_plan_to_their_datasets():
    sizes = {"a": 1000, "b": 1000, "c": 1000}
    plan = Mixture.planned(sizes, 900, weights={"a": 1, "b": 0, "c": 0})
    assert plan["a"] > 0.8
    assert plan["b"] == pytest.approx(plan["c"])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [({"draws": 0}, "draws.*0"), ({"draws": math.inf}, "draws.*inf"), ({"draws": 10, "weights": {"a": 1}}, "b")],
)
def test_what_no_plan_can_follow_is_refused(arguments, named):
    with pytest.raises(ValueError, match=named):
        Mixture.planned({"a": 1, "b": 2}, **arguments)


@pytest.mark.slow
def test_a_thousand_datasets_and_dev_sets_are_planned_in_reasonable_time():
    random = np.random.default_rng(0)
    began = time.process_time()
    planned(10 ** random.uniform(1, 5, 1000), 1e6, np.full(1000, 1e-3), random.uniform(size=(1000, 1000)))
    planned(
        10 ** random.uniform(1, 5, 10_000),
        1e7,
        np.full(10_000, 1e-4),
        NamedRelevance(np.arange(10_000), 0.22, np.ones(10_000)),
    )
    assert time.process_time() - began < 60  # of a second each on a quiet machine: this only catches another algorithm
