"""Empirical Bayes, against its textbook formulas and against a world whose truth is known."""

import math

import numpy as np
import pytest
from assertions import assert_resumes_exactly

from multidds.rewards.memory import RewardMemory, numbered, shrunk

pytestmark = pytest.mark.claim(
    "The method", "noise of many datasets is estimated by empirical Bayes; evidence fades; only what lasts counts"
)


def test_a_dataset_moves_as_far_as_its_evidence_goes():
    """The posterior of a normal mean: theta ~ N(0, tau^2), x ~ N(theta, s^2)."""
    seen, variances, lasting = np.array([2.0, 2.0, -1.0, 0.0]), np.array([0.5, 4.0, 1.0, math.inf]), 2.0
    mean, variance, own = shrunk(seen, 1 / variances, np.zeros(4, int), lasting)
    expected = [2 * 2 / 2.5, 2 * 2 / 6, -1 * 2 / 3, 0]
    assert mean.tolist() == pytest.approx(expected)
    assert variance.tolist() == pytest.approx([2 * 0.5 / 2.5, 2 * 4 / 6, 2 * 1 / 3, 2])
    assert own.tolist() == pytest.approx([2 / 2.5, 2 / 6, 2 / 3, 0])


def test_without_anything_that_lasts_the_posterior_is_zero():
    mean, _, own = shrunk(np.array([3.0, -3.0]), np.array([9.0, 9.0]), np.zeros(2, int), 0.0)
    assert mean.tolist() == own.tolist() == [0, 0]


def test_groups_that_differ_pull_their_datasets_to_their_own_means():
    """Two levels, written out; the variances between and within groups agree with each other."""
    seen, weight = np.array([1.0, 1.4, 0.9, -1.2, -0.8, -1.0]), np.full(6, 2.0)
    groups, lasting = np.array([0, 0, 0, 1, 1, 1]), 1.5
    mean, variance, _ = shrunk(seen, weight, groups, lasting)
    within = 1 / (1 / variance[0] - 2)
    between, own = lasting - within, 1 / (within + 0.5)
    centres = np.array([seen[:3].mean(), seen[3:].mean()])
    assert between == pytest.approx((centres**2 - 1 / (3 * own)).mean())
    shrunk_centres = centres * between / (between + 1 / (3 * own))
    factor = within / (within + 0.5)
    expected = [c + factor * (x - c) for x, c in zip(seen, np.repeat(shrunk_centres, 3), strict=True)]
    assert mean.tolist() == pytest.approx(expected)
    unseen, _, _ = shrunk(np.append(seen, 0.0), np.append(weight, 0.0), np.append(groups, 0), lasting)
    assert unseen[-1] == pytest.approx(unseen[:3].mean(), abs=0.3)  # a dataset never seen stays with its group
    assert unseen[-1] > 0.5


def observe(memory, truth, rng, count, noise, update_noise=0.0):
    n = len(truth)
    at = rng.choice(n, count, replace=False)
    level, scale = rng.normal(), math.exp(rng.normal(0, 0.3))  # which move with every update
    x = truth[at] + rng.normal(0, noise, count) + rng.normal(0, update_noise, count)
    errors = np.abs(rng.normal(0, noise, count))  # from two halves
    assert memory.add(at, level + scale * x, scale * errors, 1)


def test_in_a_known_world_the_posterior_beats_observations_and_its_errors_are_true():
    rng = np.random.default_rng(0)
    n = 2000
    truth = rng.normal(0, 1, n)
    memory = RewardMemory([0] * n)
    for _ in range(60):
        observe(memory, truth, rng, 100, noise=2.0)
    posterior = memory.posterior()
    z = np.array(posterior.advantages)
    assert min(posterior.looks) < 3 <= max(posterior.looks)
    assert np.corrcoef(z, truth)[0, 1] > 0.6  # at most 0.65: three looks of a noise of 2
    worst = ((z - truth) ** 2).mean()
    assert worst < 0.7  # the variance of the truth is 1, of the looks 5
    error = np.array(posterior.errors) / np.array(posterior.errors).max()
    assert np.corrcoef(error, np.array(posterior.looks))[0, 1] < -0.7


def test_if_nothing_lasts_the_posterior_fades_to_zero():
    rng = np.random.default_rng(1)
    memory = RewardMemory([0] * 500)
    for _ in range(60):
        observe(memory, np.zeros(500), rng, 100, noise=0.5, update_noise=1.0)
    assert np.abs(memory.posterior().advantages).max() < 0.35
    lasting = RewardMemory([0] * 500)
    truth = rng.normal(0, 1, 500)
    for _ in range(60):
        observe(lasting, truth, rng, 100, noise=0.5, update_noise=1.0)
    assert np.corrcoef(lasting.posterior().advantages, truth)[0, 1] > 0.9


def test_evidence_fades_with_its_age():
    rng = np.random.default_rng(2)
    truth = rng.normal(0, 1, 100)
    memory = RewardMemory([0] * 100)
    memory.add(range(100), truth.tolist(), [0.5] * 100, 4)
    memory.add(range(100), truth.tolist(), [0.5] * 100, 4)
    before = memory.posterior()
    for _ in range(50):
        memory.add(range(1, 100), (truth[1:] + rng.normal(0, 0.3, 99)).tolist(), [0.5] * 99, 4)
    after = memory.posterior()
    assert after.own_evidence[0] < before.own_evidence[0] / 3
    assert after.errors[0] > before.errors[0]
    assert after.own_evidence[1] > after.own_evidence[0]


def test_the_scale_and_the_level_of_rewards_do_not_matter():
    rng = np.random.default_rng(3)
    r, e = rng.normal(0, 1, (4, 30)), rng.random((4, 30))
    posteriors = []
    for level, scale in ((0.0, 1.0), (7.0, 1e-4)):
        memory = RewardMemory([0] * 30)
        for rewards, errors in zip(r, e, strict=True):
            memory.add(range(30), (level + scale * rewards).tolist(), (scale * errors).tolist(), 1)
        posteriors.append(memory.posterior())
    assert posteriors[0].advantages == pytest.approx(posteriors[1].advantages, abs=1e-6)
    assert [7 + 1e-4 * r for r in posteriors[0].rewards] == pytest.approx(posteriors[1].rewards)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rewards_that_are_not_finite_change_nothing(bad):
    memory = RewardMemory([0, 0, 1])
    memory.add([0, 1], [0.1, 0.2], None, 1)
    before = memory.state_dict()
    assert not memory.add([0, 2], [0.1, bad], None, 1)
    assert memory.state_dict() == before


def test_equal_rewards_and_a_single_dataset_move_nothing():
    for n in (1, 5):
        memory = RewardMemory([0] * n)
        for _ in range(5):
            assert memory.add(range(n), [0.25] * n, [0.0] * n, 1)
        assert memory.posterior().advantages == [0.0] * n
        assert memory.posterior().rewards == pytest.approx([0.25] * n)


@pytest.mark.parametrize("n", [3, 400])
def test_it_resumes_exactly(n):
    rounds = np.random.default_rng(4).normal(size=(6, n))

    def make():
        memory = RewardMemory([i % 2 for i in range(n)])

        def step(i):
            places = range(i % 2, n, 2)
            memory.add(places, rounds[i, places], None if i % 3 else [0.5] * len(places), 1)
            return vars(memory.posterior())

        return {"memory": memory}, step

    assert_resumes_exactly(make, 6, stops=(1, 4), as_json=True)


def test_a_state_of_another_number_of_datasets_is_refused():
    memory, state = RewardMemory([0, 0]), RewardMemory([0, 0, 1]).state_dict()
    before = memory.state_dict()
    with pytest.raises(ValueError, match="3 .* 2"):
        memory.load_state_dict(state)
    assert memory.state_dict() == before


def test_groups_are_numbered_whatever_their_order():
    assert numbered(["b", None, "a", "b"]) == [2, 0, 1, 2]
