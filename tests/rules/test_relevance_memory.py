import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multidds.rewards.relevance_memory import RelevanceMemory, relevance_by_names

NAMES, DEV = ["a", "b", "c", "d"], ["a", "goal"]


def memory():
    return RelevanceMemory(NAMES, DEV, relevance_by_names(NAMES, DEV))


def table(values, error=0.01):
    """{dev set: {dataset: (cosine, error)}} of rows of cosines."""
    return {dev: dict(zip(NAMES, [(v, error) for v in row], strict=True)) for dev, row in zip(DEV, values, strict=True)}


def test_names_are_the_prior():
    values, _ = memory().posterior()
    assert values[0].tolist() == [1.0, 0.22, 0.22, 0.22]
    assert values[1].tolist() == [1.0] * 4  # no dataset has its name


def test_datasets_of_the_group_of_the_own_dataset_are_nearer():
    prior = relevance_by_names(NAMES, DEV, {"a": "g", "b": "g", "c": "h"})
    assert prior[0].tolist() == [1.0, 0.5, 0.22, 0.22]


@pytest.mark.claim("The method", "relevance follows what is measured, and noise leaves it at its prior")
def test_what_is_seen_again_and_again_takes_over():
    truth = np.array([[0.1, 0.4, 0.0, 0.2], [0.3, 0.0, 0.6, 0.1]])
    seen = memory()
    for _ in range(30):
        seen.add(table(truth))
    values, errors = seen.posterior()
    assert values == pytest.approx(truth / truth.max(axis=1, keepdims=True), abs=0.1)
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
    seen, clean = memory(), memory()
    row = {"a": (0.5, 0.01), "b": (0.1, 0.01)}
    clean.add({"a": row})
    seen.add({"a": {**row, "c": (float("nan"), 0.01), "d": (0.3, float("inf"))}, "goal": {"a": (float("nan"), 1.0)}})
    assert seen.posterior()[0].tolist() == clean.posterior()[0].tolist()


def test_a_state_continues_exactly_and_another_shape_is_refused():
    seen = memory()
    seen.add({"a": {"a": (0.5, 0.01), "b": (0.1, 0.02)}})
    other = memory()
    other.load_state_dict(seen.state_dict())
    for each in (seen, other):
        each.add(table(np.full((2, 4), 0.1)))
    assert other.state_dict() == seen.state_dict()
    with pytest.raises(ValueError, match="shape"):
        RelevanceMemory(NAMES[:2], DEV, relevance_by_names(NAMES[:2], DEV)).load_state_dict(seen.state_dict())
