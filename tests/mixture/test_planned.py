import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multidds import Mixture
from multidds.mixture.planned import planned

pytestmark = [
    pytest.mark.claim(
        "The method",
        "the plan is the optimum, by slopes, by other shares and by its closed form without transfer; its limits",
    )
]

SIZES = st.lists(st.floats(1, 1e6), min_size=1, max_size=8).map(lambda sizes: {f"d{i}": s for i, s in enumerate(sizes)})
TRANSFERS = st.sampled_from([0.0, 0.02, 0.05, 0.5])


def effective(drawn, size, worth=15.0):
    """The repetition law: what so many draws from a dataset of this size are worth, in new examples."""
    return drawn if drawn <= size else size + size * worth * (1 - math.exp(-(drawn / size - 1) / worth))


def utility(shares, sizes, examples, weights, transfer, worth=15.0):
    """What a plan maximises, written out as a table of who serves whom."""
    data = {name: effective(shares[name] * examples, size, worth) for name, size in sizes.items()}
    return math.fsum(
        w * math.log(math.fsum((1.0 if name == k else transfer) * data[name] for name in sizes))
        for k, w in weights.items()
    )


@given(SIZES, st.floats(0.01, 200), TRANSFERS)
def test_one_draw_more_is_worth_the_same_everywhere(sizes, passes, transfer):
    examples = passes * sum(sizes.values())
    shares = planned(sizes, examples, transfer=transfer)
    data = {name: effective(shares[name] * examples, size) for name, size in sizes.items()}
    serving = {k: math.fsum((1.0 if name == k else transfer) * data[name] for name in sizes) for k in sizes}
    worths = [  # the derivative of the utility by the draws of a dataset
        math.exp(-max(shares[name] * examples / size - 1, 0) / 15)
        * math.fsum((1.0 if name == k else transfer) / serving[k] for k in sizes)
        for name, size in sizes.items()
    ]
    assert max(worths) == pytest.approx(min(worths), rel=1e-6)
    assert math.fsum(shares.values()) == pytest.approx(1)


@given(SIZES, st.floats(0.01, 200), TRANSFERS, st.integers(0, 2**31))
def test_no_other_shares_are_better(sizes, passes, transfer, seed):
    examples, rng = passes * sum(sizes.values()), random.Random(seed)
    weights = {name: rng.uniform(0.5, 2) for name in sizes}
    best = planned(sizes, examples, weights, transfer)
    corner = min(best[name] / min(1 / len(sizes), size / sum(sizes.values())) for name, size in sizes.items()) < 0.15
    for spread in (0.01, 0.3):
        other = {name: p * math.exp(rng.gauss(0, spread)) for name, p in best.items()}
        total = math.fsum(other.values())
        found = utility({name: p / total for name, p in other.items()}, sizes, examples, weights, transfer)
        # Where a dataset is given more than the best share, the least there is, a little is lost.
        assert found <= utility(best, sizes, examples, weights, transfer) + (0.5 if corner else 1e-9)


def test_steps_that_overshoot_from_side_to_side_are_halved():
    sizes, weights = {"d0": 4.0, "d1": 1.0}, {"d0": 0.7015463661686019, "d1": 1.771150605405849}
    best = planned(sizes, 5.0, weights, 0.5)
    for p in (best["d0"] * 0.99, best["d0"] * 1.01):
        other = {"d0": p, "d1": 1 - p}
        assert utility(other, sizes, 5.0, weights, 0.5) < utility(best, sizes, 5.0, weights, 0.5)


@settings(max_examples=50)
@given(SIZES, st.floats(0.01, 100))
def test_without_transfer_it_is_the_closed_form(sizes, passes):
    examples = passes * sum(sizes.values())

    def drawn_at(price, size):  # where e^-x / (size (1 + 15 (1 - e^-x))) = price, after 1 + 15 x passes
        if price * size >= 1:
            return 1 / price
        x = math.log((1 + 15 * price * size) / (price * size * 16))
        return size * (1 + 15 * x)

    low, high = math.log(1e-300), math.log(1e6)
    for _ in range(300):
        price = math.exp((low + high) / 2)
        drawn = {name: drawn_at(price, size) for name, size in sizes.items()}
        low, high = ((low + high) / 2, high) if math.fsum(drawn.values()) > examples else (low, (low + high) / 2)
    shares = planned(sizes, examples, transfer=0)
    for name in sizes:
        assert shares[name] * examples == pytest.approx(drawn[name], rel=1e-6)


def test_a_short_training_is_planned_uniform_and_a_long_one_proportional():
    sizes = {"small": 100, "large": 10_000}
    assert planned(sizes, 50, transfer=0)["small"] == pytest.approx(0.5)
    assert planned(sizes, 1e9)["small"] == pytest.approx(100 / 10_100, rel=0.02)


def test_the_more_data_serve_each_other_the_less_small_sets_are_repeated():
    sizes = {"small": 100, "large": 10_000}
    shares = [planned(sizes, 20_000, transfer=transfer)["small"] for transfer in (0, 0.02, 0.1, 0.5, 1)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == pytest.approx(100 / 10_100, rel=1e-6)  # all one pool


def test_a_dev_set_that_counts_more_has_its_dataset_drawn_more():
    sizes = {"a": 1000, "b": 1000, "c": 1000}
    even, uneven = planned(sizes, 6000), planned(sizes, 6000, {"a": 3, "b": 1, "c": 1})
    assert uneven["a"] > even["a"] == pytest.approx(1 / 3)
    assert uneven["b"] == pytest.approx(uneven["c"])


def test_a_dataset_that_serves_nothing_is_not_left_out():
    assert planned({"a": 100, "b": 10}, 50, {"a": 1, "b": 0}, transfer=0)["b"] == pytest.approx(0.009, abs=1e-4)


def test_a_dataset_without_a_dev_set_is_not_left_out():
    shares = planned({"target": 100_000, "other": 300_000}, 1000, {"target": 1.0})
    assert shares["target"] > 0.9
    assert shares["other"] == pytest.approx(0.05 / 1.05, rel=1e-3)  # a tenth of uniform


@pytest.mark.parametrize("bad", [{"draws": 0}, {"transfer": 1.5}, {"worth": -1}, {"weights": {"a": 0.0, "b": 0.0}}])
def test_what_cannot_be_planned_is_refused(bad):
    with pytest.raises(ValueError, match="Mixture.planned"):
        Mixture.planned({"a": 1, "b": 2}, **{"draws": 10, **bad})
