"""The default rule: its formula, what moves it and what does not, and the cut of datasets that do not help."""

import math
import random
from statistics import median

import pytest
from assertions import assert_resumes_exactly
from hypothesis import assume, given
from hypothesis import strategies as st
from toy_rules import OnLists

from multidds.rewards.memory import Posterior
from multidds.rules import Anchored, Scorer

pytestmark = pytest.mark.claim(
    "The method", "the default rule is its formula; noise by halves of probes; cuts, limits, pace"
)

PRIORS = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=8).map(lambda ws: [w / math.fsum(ws) for w in ws])


def anchored(prior, strength=0.5):
    return OnLists(Anchored(strength), prior)


def noisy(rng, rewards, deviation):
    return [reward + rng.gauss(0, deviation) for reward in rewards]


def mean_and_deviation(rewards):
    mean = sum(rewards) / len(rewards)
    return mean, math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))


@given(PRIORS, st.integers(0, 2**31), st.integers(1, 6))
def test_it_is_the_plan_times_the_exponential_of_averaged_advantages(prior, seed, updates):
    rng, n = random.Random(seed), len(prior)
    rounds = [noisy(rng, [0.0] * n, 1) for _ in range(updates)]
    rule = anchored(prior, strength=0.7)
    for rewards in rounds:
        found = rule.step(rewards, [0.2] * n)
    total = updates * (updates + 1) / 2
    shares = [update / total for update in range(1, updates + 1)]  # of each update in the averages
    factor = sum(share**2 for share in shares)  # of one update's variance, what the average has
    means = [mean_and_deviation(rewards) for rewards in rounds]
    advantages = [[(r - mean) / s for r in rewards] for rewards, (mean, s) in zip(rounds, means, strict=True)]
    average = [sum(share * z[i] for share, z in zip(shares, advantages, strict=True)) for i in range(n)]
    spread = sum(z**2 for z in average) / n
    assume(spread > 1e-9)  # two datasets that took turns: there is nothing to tell them apart
    error = sum(share * min(1.0, 0.04 / s**2) for share, (_, s) in zip(shares, means, strict=True))
    changes = 0.0
    if updates > 1:  # the weighted variance of the advantages over the updates, without its bias
        own = [sum((z[i] - average[i]) ** 2 for i in range(n)) / n for z in advantages]
        changes = sum(share * one for share, one in zip(shares, own, strict=True)) / (1 - factor)
    noise_of_one = max(error, (1 + (updates - 1) * changes) / updates)  # and one update of nothing but noise
    signal = max(0.0, 1 - noise_of_one * factor / spread)
    assert rule.state.signal == pytest.approx(signal, abs=1e-9)
    rewards = [sum(share * one[i] for share, one in zip(shares, rounds, strict=True)) for i in range(n)]
    own = [sum(share * (one[i] - rewards[i]) ** 2 for share, one in zip(shares, rounds, strict=True)) for i in range(n)]
    errors = [math.sqrt(max(0.04, (0.04 + updates * v) / (1 + updates)) * factor) for v in own]
    usual = median(rewards) - 2 * median(errors)
    cuts = [1.0] * n
    if updates > 2 and usual > 0:
        cuts = [min(1.0, max(0.02, (r + e) / (usual / 2))) for r, e in zip(rewards, errors, strict=True)]
    elif updates > 2:
        cuts = [min(1.0, max(0.02, math.exp(min(0.0, (r + 3 * e) / e)))) for r, e in zip(rewards, errors, strict=True)]
    weights = [q * math.exp(0.7 * signal * z) * cut for q, z, cut in zip(prior, average, cuts, strict=True)]
    assert found == pytest.approx([w / sum(weights) for w in weights])


@pytest.mark.parametrize("looks", [2, 3])
def test_posterior_advantages_tilt_as_they_are_and_cut_what_was_probed_enough(looks):
    posterior = Posterior(
        rewards=[0.0, 0.3, 0.2],
        errors=[0.01, 0.01, 0.01],
        advantages=[-1.0, 1.0, 0.0],
        own_evidence=[0.9, 0.6, 0.0],
        looks=[looks, 9, 0],
    )
    rule = anchored([0.5, 0.3, 0.2])
    found = rule.step([0.0, 0.3, 0.2], posterior=posterior)
    cut = 0.01 / (0.5 * (0.2 - 2 * 0.01)) if looks > 2 else 1.0
    weights = [0.5 * math.exp(-0.5) * cut, 0.3 * math.exp(0.5), 0.2]
    assert found == pytest.approx([w / sum(weights) for w in weights])
    assert rule.state.signal == pytest.approx(0.5)


@given(PRIORS, st.floats(0.01, 10), st.integers(1, 20))
def test_equal_rewards_keep_the_plan_whatever_they_are(prior, reward, updates):
    rule = anchored(prior)
    for _ in range(updates):
        found = rule.step([reward] * len(prior))
    assert found == pytest.approx(prior)


@given(PRIORS, st.floats(-5, 5), st.integers(0, 2**31))
def test_what_all_rewards_have_in_common_does_not_matter(prior, common, seed):
    rewards = [random.Random(seed + i).random() for i in range(len(prior))]
    one, other = anchored(prior), anchored(prior)
    for _ in range(2):
        found, moved = one.step(rewards), other.step([r + common for r in rewards])
    assert found == pytest.approx(moved, rel=1e-6)
    assert found != pytest.approx(prior, rel=1e-6)


@given(st.integers(0, 2**31), st.floats(1e-6, 1e6))
def test_the_scale_of_the_rewards_does_not_matter(seed, scale):
    rng = random.Random(seed)
    rounds = [[rng.uniform(-0.2, 1) for _ in range(5)] for _ in range(4)]
    one, other = (anchored([0.1, 0.2, 0.3, 0.1, 0.3]) for _ in range(2))
    for rewards in rounds:
        found = one.step(rewards, [0.05] * 5)
        scaled = other.step([scale * r for r in rewards], [scale * 0.05] * 5)
    assert found == pytest.approx(scaled, rel=1e-6)


def test_what_is_only_noise_leaves_the_plan():
    rng, prior = random.Random(0), [0.5, 0.3, 0.2]
    rule, signals = anchored(prior), []
    for _ in range(100):
        found = rule.step(noisy(rng, [0.1] * 3, 0.05), [0.05] * 3)
        signals.append(rule.state.signal)
    assert found == pytest.approx(prior, abs=0.05)
    assert sum(signals) / len(signals) < 0.5


def test_advantages_that_do_not_last_leave_the_plan():
    """Probes without noise, but of moments that contradict each other: what is better now is worse soon."""
    prior, distances = [0.4, 0.3, 0.2, 0.1], []
    for seed in range(4):
        rng, rule = random.Random(seed), anchored(prior)
        for _ in range(60):
            found = rule.step(rng.sample([0.2, 0.3, 0.25, 0.28], 4), [1e-6] * 4)
            distances.append(sum(abs(p - q) for p, q in zip(found, prior, strict=True)) / 2)
    assert sum(distances) / len(distances) < 0.03  # 0.06 if only the noise of probes counted
    assert max(distances) < 0.13


def test_a_signal_under_noise_comes_through_with_more_updates():
    rng, rule = random.Random(0), anchored([0.25] * 4)
    for _ in range(200):
        found = rule.step(noisy(rng, (0.2, 0.1, 0.1, 0.1), 0.05), [0.05] * 4)
    assert found[0] > 0.33
    assert rule.state.signal > 0.9
    assert found[1:] == pytest.approx([(1 - found[0]) / 3] * 3, abs=0.03)


def test_without_errors_of_probes_updates_that_agree_are_a_signal():
    rule = anchored([0.5, 0.5])
    assert math.isnan(rule.state.signal)
    assert rule.step([0.1, 0.2]) == [0.5, 0.5]  # no other update agrees yet
    assert rule.state.signal == 0
    signals = [rule.step([0.1, 0.2], errors) and rule.state.signal for errors in ((), [math.nan, 0.1], [0.0, 0.0])]
    assert signals == sorted(signals)
    assert 0.7 < signals[0] < signals[-1] < 1


def test_harm_is_bounded_however_long_one_dataset_stands_out():
    rule = anchored([0.01] * 100)
    for _ in range(500):
        found = rule.step([-1e9] + [1.0] * 99)
    assert found[0] / found[1] >= math.exp(-0.5 * (3 + 0.11))


def test_any_strength_gives_probabilities():
    rule = anchored([0.5, 0.5], strength=1e6)
    assert [rule.step([0.0, 1.0]) for _ in range(2)] == [[0.5, 0.5], [0.0, 1.0]]
    kept = anchored([0.9, 0.1], strength=0.0)
    assert [kept.step([0.2, 1.0]) for _ in range(2)][-1] == pytest.approx([0.9, 0.1])


def test_a_dataset_that_certainly_does_not_help_is_cut_and_can_come_back():
    rng, rule = random.Random(0), anchored([0.8, 0.1, 0.1])
    for _ in range(20):
        found = rule.step(noisy(rng, (0.0, 0.3, 0.25), 0.03), [0.03] * 3)
    assert found[0] < 0.1  # of 0.8; the tilt alone would leave 0.58
    for _ in range(200):
        found = rule.step(noisy(rng, (0.28, 0.3, 0.25), 0.03), [0.03] * 3)
    assert found[0] > 0.7


def test_if_rewards_are_around_zero_what_certainly_harms_is_cut():
    """As at averaged weights, which lack what all gradients have in common."""
    rng, rule = random.Random(0), anchored([0.4, 0.3, 0.3], strength=0.0)
    for _ in range(10):
        found = rule.step(noisy(rng, (-0.03, 0.01, 0.0), 0.01), [0.01] * 3)
    assert found[0] < 0.05
    assert found[1] == pytest.approx(found[2])


@pytest.mark.parametrize(
    "rewards",
    [
        (0.2, 0.3, 0.25),  # more than half of the median
        (0.0, 0.05, 0.04),  # the median is not certainly above 0
        (0.1, 0.3, 0.25),  # less than half, but not certainly
    ],
)
def test_nothing_is_cut_without_certainty(rewards):
    rng, rule = random.Random(0), anchored([0.8, 0.1, 0.1], strength=0.0)
    for _ in range(4):
        found = rule.step(noisy(rng, rewards, 0.1), [0.1] * 3)
    assert found == pytest.approx([0.8, 0.1, 0.1])


def test_nothing_is_cut_by_the_first_updates():
    rule = anchored([0.8, 0.1, 0.1], strength=0.0)
    found = [rule.step([0.0, 0.3, 0.25], [0.001] * 3) for _ in range(3)]
    assert found[1] == pytest.approx([0.8, 0.1, 0.1])
    assert found[2][0] < 0.2


@pytest.mark.parametrize("rewards", [[math.nan, 1.0], [math.inf, 1.0], [math.inf, -math.inf], [1e300, -1e300]])
def test_rewards_that_are_not_finite_change_nothing(rewards):
    rule = anchored([0.5, 0.5])
    rule.step([0.1, 0.2])
    before = rule.state_dict()
    assert rule.step(rewards) is None
    assert rule.state_dict() == before


@pytest.mark.parametrize("strength", [-1.0, math.nan, math.inf])
def test_a_strength_that_is_none_is_refused(strength):
    with pytest.raises(ValueError, match=f"strength.*{strength}"):
        Anchored(strength=strength)


def test_it_resumes_exactly():
    rng = random.Random(1)
    rounds = [[rng.random() for _ in range(3)] for _ in range(8)]

    def make():
        rule = anchored([0.2, 0.3, 0.5])
        return {"rule": rule}, lambda i: (rule.step(rounds[i], [0.1] * 3), rule.state.signal)

    assert_resumes_exactly(make, 8, stops=(1, 4), as_json=True)


def test_states_of_other_rules_and_numbers_of_datasets_are_refused():
    rule = anchored([0.5, 0.5])
    rule.step([0.1, 0.2])
    before = rule.state_dict()
    for other, message in ((OnLists(Scorer(), [0.5, 0.5]), "'scorer'"), (anchored([0.2, 0.3, 0.5]), "3 datasets.* 2")):
        with pytest.raises(ValueError, match=f"Anchored: .*{message}"):
            rule.load_state_dict(other.state_dict())
        assert rule.state_dict() == before
