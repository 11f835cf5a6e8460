"""Alignment, rewards and priorities: the pure part, on numbers made up or computed by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multidds.probes import Alignment
from multidds.rewards import formulas as rewards
from multidds.rewards import priorities


def table(d, t):
    """The alignment of given gradients d [dev, size] and t [train, size]."""
    return Alignment(
        train_names=tuple(f"t{i}" for i in range(len(t))),
        dev_names=tuple(f"d{k}" for k in range(len(d))),
        dev_train=d @ t.T,
        dev_dev=d @ d.T,
        train_norms=t.norm(dim=1),
        train_losses={},
        dev_losses={},
    )


def random(rows, seed, size=9):
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_rewards_by_hand():
    d = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    t = torch.tensor([[3.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    w = torch.tensor([0.5, 0.5], dtype=torch.float64)
    assert rewards.multidds(table(d, t), w).tolist() == pytest.approx([1 / 5**0.5, 3 / 10**0.5])  # v = (0.5, 1)
    assert rewards.multidds_s(table(d, t), w).tolist() == pytest.approx([0.5, 1 / 2**0.5])
    assert table(d, t).cosines().tolist() == [pytest.approx([1, 0.5**0.5]), pytest.approx([0, 0.5**0.5])]
    assert table(d, t).dev_norms.tolist() == [1, 2]


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 999))
def test_rewards_are_cosines_of_the_gradients(k, n, seed):
    d, t = random(k, seed), random(n, seed + 1)
    w = torch.rand(k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.01
    w /= w.sum()
    cosine = torch.nn.functional.cosine_similarity
    assert torch.allclose(rewards.multidds(table(d, t), w), cosine((w @ d)[None], t), atol=1e-12)
    each = torch.stack([cosine(d[j][None], t) for j in range(k)])
    assert torch.allclose(rewards.multidds_s(table(d, t), w), w @ each, atol=1e-12)


@given(st.integers(1, 5), st.integers(0, 999))
def test_one_dev_set_makes_both_rewards_equal(n, seed):
    alignment = table(random(1, seed), random(n, seed + 1))
    assert torch.allclose(rewards.multidds(alignment), rewards.multidds_s(alignment), atol=1e-12)


def test_scaling_one_dev_loss_changes_multidds_but_not_multidds_s():
    d, t = random(3, 0), random(4, 1)
    scaled = d * torch.tensor([[10.0], [1.0], [1.0]], dtype=torch.float64)
    assert torch.allclose(rewards.multidds_s(table(d, t)), rewards.multidds_s(table(scaled, t)), atol=1e-12)
    assert not torch.allclose(rewards.multidds(table(d, t)), rewards.multidds(table(scaled, t)), atol=1e-2)
    assert torch.allclose(rewards.multidds(table(d * 7, t * 3)), rewards.multidds(table(d, t)), atol=1e-12)


def test_the_cosine_with_a_zero_gradient_is_zero():
    d, t = random(2, 0), random(3, 1)
    t[1] = 0
    assert rewards.multidds(table(d, t))[1] == 0
    assert rewards.multidds_s(table(d, t))[1] == 0
    opposite = torch.stack([d[0], -d[0]])
    assert rewards.multidds(table(opposite, t)).abs().max() < 1e-6
    assert rewards.multidds_s(table(0 * d, t)).tolist() == [0, 0, 0]


def test_weights_of_the_wrong_shape_are_refused():
    with pytest.raises(ValueError, match="one number for each of the 2 dev sets, but their shape is \\(3,\\)"):
        rewards.multidds(table(random(2, 0), random(2, 1)), torch.ones(3))


LOSSES = st.dictionaries(st.text(min_size=1, max_size=3), st.sampled_from([0.5, 1.0, 2.0, 3.5]), min_size=1)


@given(LOSSES)
def test_low_and_high_take_the_worse_and_the_better_half_rounded_up(losses):
    half = math.ceil(len(losses) / 2)
    for rule, sign in ((priorities.low, -1), (priorities.high, 1)):
        weights = rule(losses)
        chosen = {name for name, weight in weights.items() if weight > 0}
        assert chosen == set(sorted(losses, key=lambda name: (sign * losses[name], name))[:half])
        assert all(weights[name] == 1 / half for name in chosen)
        assert set(weights) == set(losses)
    assert set(priorities.regular(losses).values()) == {1 / len(losses)}


def test_weights_are_normalised_and_missing_names_count_nothing():
    losses = {"a": 1.0, "b": 2.0, "c": 3.0}
    assert priorities.weights_of({"a": 1, "c": 3}, losses) == {"a": 0.25, "b": 0.0, "c": 0.75}
    assert priorities.weights_of(lambda losses: {"b": losses["b"]}, losses) == {"a": 0.0, "b": 1.0, "c": 0.0}


@pytest.mark.parametrize(
    ("priority", "message"),
    [
        ("lwo", "expected 'regular', 'low', 'high', weights or a function, got 'lwo'"),
        ({"x": 1.0}, "there is no dev set 'x'; there are 'a', 'b'"),
        ({"a": -1.0}, "must be finite and not negative, but 'a' is -1.0"),
        ({"a": math.nan}, "but 'a' is nan"),
        ({"a": 0.0}, "at least one dev set needs a weight above 0"),
        ({}, "at least one dev set needs a weight above 0"),
    ],
)
def test_a_bad_priority_is_refused(priority, message):
    with pytest.raises(ValueError, match=message):
        priorities.check(priority, ("a", "b"))
    if isinstance(priority, dict):
        with pytest.raises(ValueError, match=message):
            priorities.weights_of(lambda losses: priority, {"a": 1.0, "b": 1.0})


def test_a_priority_of_another_type_is_refused():
    with pytest.raises(TypeError, match="expected a name, weights or a function, got int"):
        priorities.check(3, ("a",))
    with pytest.raises(TypeError, match="must return {dev set: weight}, but it returned NoneType"):
        priorities.weights_of(lambda losses: None, {"a": 1.0})
