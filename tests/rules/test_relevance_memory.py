"""The memory of relevance: prior, baseline, guard, noise, and datasets that are split, permuted or missing."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_rules import updated

from multidds.rules import RelevancePlan, Training
from multidds.rules.relevance_memory import RelevanceMemory, relevance_by_names

NAMES, DEV = ["a", "b", "c", "d"], ["a", "goal"]


def memory(names=NAMES, dev=DEV):
    return RelevanceMemory(names, dev, relevance_by_names(names, dev))


def table(values, error=0.01, names=NAMES, dev=DEV):
    """{dev set: {dataset: (cosine, error)}} of rows of cosines."""
    return {k: dict(zip(names, [(v, error) for v in row], strict=True)) for k, row in zip(dev, values, strict=True)}


def above_the_mean(rows):
    """The cosines less the mean of their row, divided by the largest one."""
    apart = rows - rows.mean(axis=1, keepdims=True)
    return apart / apart.max(axis=1, keepdims=True)


def test_names_are_the_prior():
    values, _ = memory().posterior()
    assert values[0].tolist() == [1.0, 0.22, 0.22, 0.22]
    assert values[1].tolist() == [1.0] * 4  # no dataset has its name


@pytest.mark.claim("The method", "relevance follows what is measured, and noise leaves it at its prior")
def test_what_is_seen_again_and_again_takes_over():
    truth = np.array([[0.1, 0.4, 0.0, 0.2], [0.3, 0.0, 0.6, 0.1]])
    seen = memory()
    for _ in range(30):
        seen.add(table(truth))
    values, errors = seen.posterior()
    assert values == pytest.approx(above_the_mean(truth), abs=0.1)
    assert (errors < memory().posterior()[1]).all()


def test_noise_leaves_the_prior_where_it_is():
    """Over many trainings: cosines that are all noise move relevance little, however many there are."""
    moved = []
    for seed in range(30):
        random = np.random.default_rng(seed)
        seen = memory()
        for _ in range(20):
            seen.add(table(random.normal(0, 0.05, (2, 4)), error=0.05))
        moved.append(np.abs(np.maximum(seen.posterior()[0], 0) - memory().posterior()[0]).mean())  # as a plan sees it
    assert np.mean(moved) < 0.25


def test_an_update_counts_by_its_information_not_by_its_age():
    """One clear look, then many at noise level, in which another dataset seems to lead by chance."""
    seen, random = memory(), np.random.default_rng(0)
    seen.add(table([[0.6, 0.4, 0.0, 0.0], [0.5, 0.1, 0.0, 0.0]]))
    for _ in range(20):
        noise = random.normal(0, 0.02, (2, 4))
        noise[:, 3] += 0.01
        seen.add(table(noise, error=0.02))
    values, _ = seen.posterior()
    assert values[0].argmax() == 0
    assert values[1].argmax() == 0
    assert values[0, 1] > 0.3


def test_what_harms_is_below_zero():
    seen = memory()
    for _ in range(20):
        seen.add(table([[0.5, 0.1, -0.3, 0.0], [0.5, 0.1, -0.3, 0.0]]))
    values, _ = seen.posterior()
    assert values[1, 2] < -0.4
    assert values.max() == 1


def test_a_row_in_which_nothing_helps_is_its_prior():
    seen = memory()
    for _ in range(50):
        seen.add(table([[-0.5] * 4, [-0.4] * 4]))
    assert seen.posterior()[0].tolist() == memory().posterior()[0].tolist()


@given(st.floats(0.1, 10), st.integers(0, 1000))
def test_the_scale_of_cosines_does_not_matter(factor, seed):
    cosines = np.random.default_rng(seed).uniform(0.01, 0.09, (2, 4))
    plain, scaled = memory(), memory()
    for _ in range(3):
        plain.add(table(cosines, error=0.001))
        scaled.add(table(cosines * factor, error=0.001 * factor))
    assert scaled.posterior()[0] == pytest.approx(plain.posterior()[0], rel=1e-6, abs=1e-9)


def test_parts_of_the_table_feed_the_same_memory():
    """A pair that is never probed keeps its prior relative to the scale of its row."""
    seen = memory()
    for _ in range(20):
        seen.add({"a": {"a": (0.1, 0.01), "b": (0.5, 0.01)}})
    values, errors = seen.posterior()
    assert values[0, 1] == 1.0
    assert values[1].tolist() == [1.0] * 4
    assert errors[0, 0] < errors[0, 2]


def test_values_that_are_not_finite_are_left_out():
    """A cosine that is not finite says nothing; with an unknown error it counts with the noise of its row."""
    seen, clean = memory(), memory()
    row = {"a": (0.5, 0.01), "b": (0.1, 0.01)}
    clean.add({"a": {**row, "d": (0.3, 0.01)}})
    unknown = {**row, "c": (math.nan, 0.01), "d": (0.3, math.inf)}
    seen.add({"a": unknown, "goal": {"a": (math.nan, 1.0)}})
    assert seen.posterior()[0] == pytest.approx(clean.posterior()[0])
    before = seen.posterior()[0].tolist()
    seen.add({"a": {name: (cosine, math.nan) for name, (cosine, _) in row.items()}})  # of one part: nothing is known
    assert seen.posterior()[0].tolist() == before


def test_a_row_without_errors_has_the_noise_of_the_others():
    known = {name: (0.1 * i, 0.02) for i, name in enumerate(NAMES)}
    seen, clean = memory(), memory()
    seen.add({"a": known, "goal": {name: (value, math.nan) for name, (value, _) in known.items()}})
    clean.add({"a": known, "goal": known})
    assert seen.posterior()[0] == pytest.approx(clean.posterior()[0])


# ------------------------------------------------------------------------------------- the baseline and its guard


@pytest.mark.claim("The method", "relevance is of differences: what all datasets have in common moves nothing")
def test_what_all_datasets_have_in_common_moves_nothing():
    seen, prior = memory(), memory().posterior()
    for _ in range(20):
        seen.add(table([[0.7] * 4, [0.6] * 4], error=0.001))
    assert seen.posterior()[0].tolist() == prior[0].tolist()
    assert seen.posterior()[1].tolist() == prior[1].tolist()
    assert seen.measured(np.ones(2)) == 0


def test_relevance_is_above_or_below_the_mean():
    cosines, seen = np.array([0.9, 0.5, 0.3, 0.1]), memory(dev=["goal"])
    for _ in range(1000):
        seen.add(table([cosines], error=0.001, dev=["goal"]))
    apart = cosines - cosines.mean()
    assert seen.posterior()[0][0] == pytest.approx(apart / apart.max(), abs=0.02)


def test_the_mean_is_that_of_the_datasets_that_were_probed():
    seen = memory(dev=["goal"])
    for _ in range(1000):
        seen.add({"goal": {"a": (0.9, 0.001), "b": (0.5, 0.001), "c": (0.1, 0.001)}})
    assert seen.posterior()[0][0, :3] == pytest.approx([1.0, 0.0, -1.0], abs=0.02)


def test_a_mean_below_zero_is_not_subtracted():
    """A dataset that only harms less than others is of no use."""
    seen = memory(dev=["goal"])
    for _ in range(1000):
        seen.add(table([[0.1, -0.1, -0.4, -0.4]], error=0.001, dev=["goal"]))
    assert seen.posterior()[0][0] == pytest.approx([1.0, -1.0, -4.0, -4.0], abs=0.1)


def shares(cosines, sizes=None, updates=20, dev="goal"):
    """The mixture after so many updates that find the same."""
    names = [f"d{i}" for i in range(len(cosines))]
    sizes = dict.fromkeys(names, 1000.0) if sizes is None else dict(zip(names, sizes, strict=True))
    prior = {name: size / sum(sizes.values()) for name, size in sizes.items()}
    state = RelevancePlan(plan=False).start(Training(prior, {dev: 1.0}, sizes, 4000.0))
    for _ in range(updates):
        updated(state, {dev: dict(zip(names, cosines, strict=True))}, error=0.003)
    return list(state.mixture.values())


@pytest.mark.claim("The method", "datasets that are nearly alike keep sharing, and one alone stays as it is")
def test_six_datasets_that_are_nearly_alike_keep_sharing():
    """Differences of a few hundredths, well measured, beside what all have in common."""
    alike = shares([0.51, 0.49, 0.5, 0.505, 0.485, 0.5])
    assert min(alike) > 0.1
    assert max(alike) < 0.25
    apart = shares([0.05, 0.0, 0.0, 0.01, -0.05, 0.0])  # the same differences, with nothing in common
    assert max(apart) > 0.5


def test_one_dataset_alone_stays_as_it_is():
    seen = memory(["a"], ["goal"])
    for _ in range(10):
        seen.add({"goal": {"a": (0.5, 0.01)}})
    assert seen.posterior()[0].tolist() == [[1.0]]
    assert seen.measured(np.ones(1)) == 0
    assert shares([0.5]) == [1.0]


@given(st.permutations(range(4)), st.integers(0, 99))
def test_the_order_of_rows_and_columns_does_not_matter(order, seed):
    rows = np.random.default_rng(seed).uniform(-0.1, 0.6, (2, 4))
    one, other = memory(), memory([NAMES[i] for i in order], DEV[::-1])
    for _ in range(3):
        given_rows = table(rows, error=0.02)
        one.add(given_rows)
        turned = {dev: {NAMES[i]: given_rows[dev][NAMES[i]] for i in order} for dev in DEV[::-1]}
        other.add(turned)
        rows = rows + 0.01
    for here, there in zip(one.posterior(), other.posterior(), strict=True):
        assert there == pytest.approx(here[::-1][:, list(order)], abs=1e-12)
