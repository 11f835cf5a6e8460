"""Noise shared out: empirical Bayes against its textbook formulas, and against a world whose truth is known."""

import json
import math

import numpy as np
import pytest

from multidds.rewards.memory import RewardMemory, numbered, shrunk

pytestmark = [
    pytest.mark.claim(
        "The method",
        "noise is shared out by the textbook's formulas; evidence fades; nothing that does not last is believed",
    )
]


def test_a_dataset_moves_as_far_as_its_evidence_goes():
    """The posterior of a normal mean: theta ~ N(0, tau^2), x ~ N(theta, s^2)."""
    seen, variances, lasting = np.array([2.0, 2.0, -1.0, 0.0]), np.array([0.5, 4.0, 1.0, math.inf]), 2.0
    mean, variance, trust = shrunk(seen, 1 / variances, np.zeros(4, int), lasting)
    expected = [2 * 2 / 2.5, 2 * 2 / 6, -1 * 2 / 3, 0]
    assert mean.tolist() == pytest.approx(expected)
    assert variance.tolist() == pytest.approx([2 * 0.5 / 2.5, 2 * 4 / 6, 2 * 1 / 3, 2])
    assert trust.tolist() == pytest.approx([2 / 2.5, 2 / 6, 2 / 3, 0])


def test_without_anything_that_lasts_nothing_is_believed():
    mean, _, trust = shrunk(np.array([3.0, -3.0]), np.array([9.0, 9.0]), np.zeros(2, int), 0.0)
    assert mean.tolist() == trust.tolist() == [0, 0]


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


def looks_at(estimates, truth, rng, count, noise, update_noise=0.0):
    n = len(truth)
    at = rng.choice(n, count, replace=False)
    level, scale = rng.normal(), math.exp(rng.normal(0, 0.3))  # which move with every update
    x = truth[at] + rng.normal(0, noise, count) + rng.normal(0, update_noise, count)
    errors = np.abs(rng.normal(0, noise, count))  # of two halves
    assert estimates.add(at, level + scale * x, scale * errors, 1)


def test_in_a_known_world_beliefs_beat_looks_and_errors_are_true():
    rng = np.random.default_rng(0)
    n = 2000
    truth = rng.normal(0, 1, n)
    estimates = RewardMemory([0] * n)
    for _ in range(60):
        looks_at(estimates, truth, rng, 100, noise=2.0)
    belief = estimates.belief()
    z = np.array(belief.advantages)
    assert min(estimates.looks) < 3 <= max(estimates.looks)
    assert np.corrcoef(z, truth)[0, 1] > 0.6  # at most 0.65: three looks of a noise of 2
    worst = ((z - truth) ** 2).mean()
    assert worst < 0.7  # the variance of the truth is 1, of the looks 5
    error = np.array(belief.errors) / np.array(belief.errors).max()
    assert np.corrcoef(error, np.array(estimates.looks))[0, 1] < -0.7


def test_where_nothing_lasts_beliefs_fade_to_nothing():
    rng = np.random.default_rng(1)
    estimates = RewardMemory([0] * 500)
    for _ in range(60):
        looks_at(estimates, np.zeros(500), rng, 100, noise=0.5, update_noise=1.0)
    assert np.abs(estimates.belief().advantages).max() < 0.35
    lasting = RewardMemory([0] * 500)
    truth = rng.normal(0, 1, 500)
    for _ in range(60):
        looks_at(lasting, truth, rng, 100, noise=0.5, update_noise=1.0)
    assert np.corrcoef(lasting.belief().advantages, truth)[0, 1] > 0.9


def test_evidence_fades_with_its_age():
    rng = np.random.default_rng(2)
    truth = rng.normal(0, 1, 100)
    estimates = RewardMemory([0] * 100)
    estimates.add(range(100), truth.tolist(), [0.5] * 100, 4)
    estimates.add(range(100), truth.tolist(), [0.5] * 100, 4)
    before = estimates.belief()
    for _ in range(50):
        estimates.add(range(1, 100), (truth[1:] + rng.normal(0, 0.3, 99)).tolist(), [0.5] * 99, 4)
    after = estimates.belief()
    assert estimates.ages[0] == 50
    assert estimates.ages[1] == 0
    assert after.trusted[0] < before.trusted[0] / 3
    assert after.errors[0] > before.errors[0]
    assert after.trusted[1] > after.trusted[0]


def test_the_scale_and_the_level_of_rewards_do_not_matter():
    rng = np.random.default_rng(3)
    r, e = rng.normal(0, 1, (4, 30)), rng.random((4, 30))
    beliefs = []
    for level, scale in ((0.0, 1.0), (7.0, 1e-4)):
        estimates = RewardMemory([0] * 30)
        for rewards, errors in zip(r, e, strict=True):
            estimates.add(range(30), (level + scale * rewards).tolist(), (scale * errors).tolist(), 1)
        beliefs.append(estimates.belief())
    assert beliefs[0].advantages == pytest.approx(beliefs[1].advantages, abs=1e-6)
    assert [7 + 1e-4 * r for r in beliefs[0].rewards] == pytest.approx(beliefs[1].rewards)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rewards_that_are_not_finite_change_nothing(bad):
    estimates = RewardMemory([0, 0, 1])
    estimates.add([0, 1], [0.1, 0.2], None, 1)
    before = estimates.state_dict()
    assert not estimates.add([0, 2], [0.1, bad], None, 1)
    assert estimates.state_dict() == before


def test_equal_rewards_and_a_single_dataset_move_nothing():
    for n in (1, 5):
        estimates = RewardMemory([0] * n)
        for _ in range(5):
            assert estimates.add(range(n), [0.25] * n, [0.0] * n, 1)
        assert estimates.belief().advantages == [0.0] * n
        assert estimates.belief().rewards == pytest.approx([0.25] * n)


@pytest.mark.parametrize("n", [3, 400])
def test_a_state_survives_json_and_goes_on_exactly(n):
    rng = np.random.default_rng(4)
    one, other = RewardMemory([i % 2 for i in range(n)]), RewardMemory([i % 2 for i in range(n)])
    for _ in range(3):
        one.add(range(0, n, 2), rng.normal(size=len(range(0, n, 2))).tolist(), None, 1)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for estimates in (one, other):
        estimates.add(range(n), [float(i % 7) for i in range(n)], [0.5] * n, 3)
    assert one.state_dict() == other.state_dict()
    assert one.belief() == other.belief()


def test_groups_are_numbered_whatever_their_order():
    assert numbered(["b", None, "a", "b"]) == [2, 0, 1, 2]
