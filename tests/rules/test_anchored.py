import json
import math
import random
from statistics import median

import pytest
from assertions import assert_resumes_exactly
from hypothesis import assume, given
from hypothesis import strategies as st

from multidds.rules.anchored import Anchored

pytestmark = [
    pytest.mark.claim(
        "The method",
        "the default rule is the documented formula; noise comes from the halves of a probe; what is cut and "
        "what is not; resume; limits; pace",
    )
]

PRIORS = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=8).map(lambda ws: [w / math.fsum(ws) for w in ws])


@given(PRIORS, st.floats(0.01, 10), st.integers(1, 20))
def test_equal_rewards_keep_the_anchor_whatever_they_are(prior, reward, updates):
    rule = Anchored().started(prior)
    for _ in range(updates):
        found = rule.step([reward] * len(prior))
    assert found == pytest.approx(prior)


@given(PRIORS, st.integers(0, 2**31), st.integers(1, 6))
def test_it_is_the_anchor_times_the_exponential_of_averaged_advantages(prior, seed, updates):
    rng, n = random.Random(seed), len(prior)
    rounds = [[rng.gauss(0, 1) for _ in prior] for _ in range(updates)]
    noise = [0.2] * n
    rule = Anchored(strength=0.7).started(prior)
    for rewards in rounds:
        found = rule.step(rewards, noise)
    average, error, total = [0.0] * n, 0.0, updates * (updates + 1) / 2
    for number, rewards in enumerate(rounds, start=1):  # update u counts u times
        mean = sum(rewards) / n
        spread = sum((r - mean) ** 2 for r in rewards) / n
        error += number * min(1.0, 0.04 / spread) / total
        for i, r in enumerate(rewards):
            average[i] += number * (r - mean) / math.sqrt(spread) / total
    spread = sum(z**2 for z in average) / n
    assume(spread > 1e-9)  # two datasets that took turns: there is nothing to tell them apart
    factor = sum(u**2 for u in range(1, updates + 1)) / total**2  # of one update's variance, what the average has
    changes = 0.0
    if updates > 1:  # the weighted variance of the advantages over the updates, without its bias
        for number, rewards in enumerate(rounds, start=1):
            mean = sum(rewards) / n
            deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / n)
            changes += (
                number * sum(((r - mean) / deviation - z) ** 2 for r, z in zip(rewards, average, strict=True)) / n
            )
        changes /= total * (1 - factor)
    noise_of_one = max(error, (1 + (updates - 1) * changes) / updates)  # and one update of nothing but noise
    signal = max(0.0, 1 - noise_of_one * factor / spread)
    assert rule.signal == pytest.approx(signal, abs=1e-9)
    rewards = [sum(number * one[i] for number, one in enumerate(rounds, start=1)) / total for i in range(n)]
    own = [sum(u * (one[i] - rewards[i]) ** 2 for u, one in enumerate(rounds, start=1)) / total for i in range(n)]
    errors = [math.sqrt(max(0.04, (0.04 + updates * v) / (1 + updates)) * factor) for v in own]
    usual = median(rewards) - 2 * median(errors)
    cuts = [1.0] * n
    if updates > 2 and usual > 0:
        cuts = [min(1.0, max(0.02, (r + e) / (usual / 2))) for r, e in zip(rewards, errors, strict=True)]
    elif updates > 2:
        cuts = [min(1.0, max(0.02, math.exp(min(0.0, (r + 3 * e) / e)))) for r, e in zip(rewards, errors, strict=True)]
    weights = [q * math.exp(0.7 * signal * z) * cut for q, z, cut in zip(prior, average, cuts, strict=True)]
    assert found == pytest.approx([w / sum(weights) for w in weights])


@given(PRIORS, st.floats(-5, 5), st.integers(0, 2**31))
def test_what_all_rewards_have_in_common_does_not_matter(prior, common, seed):
    rewards = [random.Random(seed + i).random() for i in range(len(prior))]
    one, other = (Anchored().started(prior) for _ in range(2))
    assert one.step(rewards) == pytest.approx(other.step([r + common for r in rewards]), rel=1e-6)


@given(st.integers(0, 2**31), st.floats(1e-6, 1e6))
def test_the_scale_of_the_rewards_does_not_matter(seed, scale):
    rng = random.Random(seed)
    rounds = [[rng.uniform(-0.2, 1) for _ in range(5)] for _ in range(4)]
    noise = [0.05] * 5
    one, other = (Anchored().started([0.1, 0.2, 0.3, 0.1, 0.3]) for _ in range(2))
    for rewards in rounds:
        found = one.step(rewards, noise)
        scaled = other.step([scale * r for r in rewards], [scale * e for e in noise])
    assert found == pytest.approx(scaled, rel=1e-6)


def test_what_is_only_noise_leaves_the_anchor():
    rng, prior = random.Random(0), [0.5, 0.3, 0.2]
    rule, signals = Anchored().started(prior), []
    for _ in range(100):
        found = rule.step([0.1 + rng.gauss(0, 0.05) for _ in prior], [0.05] * 3)
        signals.append(rule.signal)
    assert found == pytest.approx(prior, abs=0.05)
    assert sum(signals) / len(signals) < 0.5


def test_a_signal_under_noise_comes_through_with_more_updates():
    rng, rule = random.Random(0), Anchored().started([0.25] * 4)
    for _ in range(200):
        found = rule.step([r + rng.gauss(0, 0.05) for r in (0.2, 0.1, 0.1, 0.1)], [0.05] * 4)
    assert found[0] > 0.33
    assert rule.signal > 0.9
    assert found[1:] == pytest.approx([(1 - found[0]) / 3] * 3, abs=0.03)


def test_harm_is_bounded_however_long_one_dataset_stands_out():
    rule = Anchored(strength=0.5).started([0.01] * 100)
    for _ in range(500):
        found = rule.step([-1e9] + [1.0] * 99)
    assert found[0] / found[1] >= math.exp(-0.5 * (3 + 0.11))
    assert Anchored(strength=0.0).started([0.9, 0.1]).step([0.0, 1.0]) == pytest.approx([0.9, 0.1])


def test_a_dataset_that_certainly_does_not_help_is_cut():
    rng, rule = random.Random(0), Anchored().started([0.8, 0.1, 0.1])
    for _ in range(20):
        found = rule.step([r + rng.gauss(0, 0.03) for r in (0.0, 0.3, 0.25)], [0.03] * 3)
    assert found[0] < 0.1  # of 0.8; the tilt alone would leave 0.58
    for _ in range(200):  # and comes back when it helps
        found = rule.step([r + rng.gauss(0, 0.03) for r in (0.28, 0.3, 0.25)], [0.03] * 3)
    assert found[0] > 0.7


def test_where_rewards_are_around_nothing_what_certainly_harms_is_cut():
    """As at averaged weights, where what all gradients have in common is gone."""
    rng, rule = random.Random(0), Anchored(strength=0.0).started([0.4, 0.3, 0.3])
    for _ in range(10):
        found = rule.step([r + rng.gauss(0, 0.01) for r in (-0.03, 0.01, 0.0)], [0.01] * 3)
    assert found[0] < 0.05
    assert found[1] == pytest.approx(found[2])


@pytest.mark.parametrize(
    "rewards",
    [
        (0.2, 0.3, 0.25),  # more than half of what is usual
        (0.0, 0.05, 0.04),  # what is usual is nothing that is sure
        (0.1, 0.3, 0.25),  # less than half, but not for sure
    ],
)
def test_nothing_is_cut_where_it_is_not_certain(rewards):
    rng, rule = random.Random(0), Anchored(strength=0.0).started([0.8, 0.1, 0.1])
    for _ in range(4):
        found = rule.step([r + rng.gauss(0, 0.1) for r in rewards], [0.1] * 3)
    assert found == pytest.approx([0.8, 0.1, 0.1])


def test_nothing_is_cut_by_the_first_updates():
    rule = Anchored(strength=0.0).started([0.8, 0.1, 0.1])
    found = [rule.step([0.0, 0.3, 0.25], [0.001] * 3) for _ in range(3)]
    assert found[1] == pytest.approx([0.8, 0.1, 0.1])
    assert found[2][0] < 0.2


def test_rewards_that_are_not_finite_change_nothing():
    rule = Anchored().started([0.5, 0.5])
    before = json.dumps(rule.state_dict())
    assert rule.step([math.nan, 1.0]) is None
    assert rule.step([math.inf, 1.0]) is None
    assert rule.step([math.inf, -math.inf]) is None
    assert json.dumps(rule.state_dict()) == before


@pytest.mark.parametrize("strength", [-1.0, math.nan, math.inf])
def test_a_strength_that_is_none_is_refused(strength):
    with pytest.raises(ValueError, match="strength must be 0 or more"):
        Anchored(strength=strength)


def test_a_resumed_rule_goes_on_exactly():
    rng = random.Random(1)
    rounds = [[rng.random() for _ in range(3)] for _ in range(8)]

    def make():
        rule = Anchored().started([0.2, 0.3, 0.5])
        return {"rule": rule}, lambda i: rule.step(rounds[i], [0.1] * 3)

    assert_resumes_exactly(make, 8, as_json=True)


def test_without_noise_of_probes_updates_that_agree_are_a_signal():
    rule = Anchored().started([0.5, 0.5])
    assert math.isnan(rule.signal)
    assert rule.step([0.1, 0.2]) == [0.5, 0.5]  # nobody has agreed yet
    assert rule.signal == 0
    signals = [rule.step([0.1, 0.2], noise) and rule.signal for noise in (None, [math.nan, 0.1], [0.0, 0.0])]
    assert signals == sorted(signals)
    assert 0.7 < signals[0] < signals[-1] < 1
    other = Anchored().started([0.5, 0.5])
    other.load_state_dict(rule.state_dict())
    assert other.signal == rule.signal


def test_advantages_that_do_not_last_leave_the_anchor():
    """Probes without noise, but of moments that contradict each other: what is better now is worse soon."""
    prior, far = [0.4, 0.3, 0.2, 0.1], []
    for seed in range(4):
        rng, rule = random.Random(seed), Anchored().started(prior)
        for _ in range(60):
            found = rule.step(rng.sample([0.2, 0.3, 0.25, 0.28], 4), [1e-6] * 4)
            far.append(sum(abs(p - q) for p, q in zip(found, prior, strict=True)) / 2)
    assert sum(far) / len(far) < 0.03  # 0.06 where only the noise of probes counts
    assert max(far) < 0.13


def test_any_strength_gives_probabilities():
    rule = Anchored(strength=1e6).started([0.5, 0.5])
    assert [rule.step([0.0, 1.0]) for _ in range(2)] == [[0.5, 0.5], [0.0, 1.0]]
