import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multidds.anchored import Anchored

PRIORS = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=8).map(lambda ws: [w / math.fsum(ws) for w in ws])


@given(PRIORS, st.floats(0.01, 10), st.integers(1, 20))
def test_equal_rewards_keep_the_anchor_whatever_they_are(prior, reward, updates):
    rule = Anchored().started(prior)
    for _ in range(updates):
        found = rule.step([reward] * len(prior))
    assert found == pytest.approx(prior)


@given(st.lists(st.floats(0.2, 1.0), min_size=2, max_size=8), st.integers(1, 20))
def test_with_a_uniform_anchor_it_is_the_fixed_point_of_the_papers_rule(rewards, updates):
    rule = Anchored(strength=1.0).started([1 / len(rewards)] * len(rewards))
    for _ in range(updates):
        found = rule.step(rewards)
    assert found == pytest.approx([r / math.fsum(rewards) for r in rewards])


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
    rule = Anchored().started(prior)
    for _ in range(50):
        found = rule.step([0.1 + rng.gauss(0, 0.05) for _ in prior], [0.05] * 3)
    assert found == pytest.approx(prior, abs=0.03)
    assert rule.signal < 0.7


def test_a_signal_under_noise_comes_through_with_more_updates():
    rng, prior = random.Random(0), [0.25] * 4
    rule = Anchored().started(prior)
    signals = []
    for _ in range(200):
        found = rule.step([r + rng.gauss(0, 0.1) for r in (0.2, 0.1, 0.1, 0.1)], [0.1] * 4)
        signals.append(rule.signal)
    assert signals[-1] > 0.7
    assert found[0] == pytest.approx(0.4, abs=0.06)


def test_no_share_leaves_the_limits_around_its_anchor():
    rule = Anchored(limit=4.0).started([0.5, 0.5])
    found = rule.step([1.0, -1.0])
    assert found[1] / found[0] >= 1 / 16 - 1e-12
    assert Anchored(strength=0.0).started([0.9, 0.1]).step([0.0, 1.0]) == pytest.approx([0.9, 0.1])


def test_rewards_that_are_all_zero_or_not_finite_change_nothing():
    rule = Anchored().started([0.5, 0.5])
    before = json.dumps(rule.state_dict())
    assert rule.step([0.0, 0.0]) is None
    assert rule.step([math.nan, 1.0]) is None
    assert json.dumps(rule.state_dict()) == before


def test_a_resumed_rule_goes_on_exactly():
    rng = random.Random(1)
    rounds = [[rng.random() for _ in range(3)] for _ in range(8)]
    whole = Anchored().started([0.2, 0.3, 0.5])
    expected = [whole.step(rewards, [0.1] * 3) for rewards in rounds]
    first, second = (Anchored().started([0.2, 0.3, 0.5]) for _ in range(2))
    got = [first.step(rewards, [0.1] * 3) for rewards in rounds[:4]]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert got + [second.step(rewards, [0.1] * 3) for rewards in rounds[4:]] == expected
