"""Rewards as functions of an alignment, on numbers made up or computed by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multidds import rewards
from multidds.probes import Alignment
from multidds.rewards.formulas import redraw_noise


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


@pytest.mark.claim("The method", "scaling losses; K = 1")
@given(st.integers(1, 5), st.integers(0, 999))
def test_one_dev_set_makes_both_rewards_equal(n, seed):
    alignment = table(random(1, seed), random(n, seed + 1))
    assert torch.allclose(rewards.multidds(alignment), rewards.multidds_s(alignment), atol=1e-12)


@pytest.mark.claim("The method", "scaling losses; K = 1")
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
    with pytest.raises(ValueError, match=r"weights.*2 dev sets.*\(3,\)"):
        rewards.multidds(table(random(2, 0), random(2, 1)), torch.ones(3))


def test_the_noise_of_halves_leaves_out_what_all_rewards_have_in_common():
    first, second = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 2.0, 4.0])
    assert redraw_noise(first, second).tolist() == pytest.approx([0.5 * 1.5**0.5, 0, 0.5 * 1.5**0.5])
    assert redraw_noise(first + 7, second).tolist() == pytest.approx(redraw_noise(first, second).tolist())
    assert redraw_noise(first[:1], second[:1]).tolist() == [0.0]


def test_the_noise_of_halves_is_the_standard_error_of_their_mean():
    """Over many redraws: the mean square is the variance of the mean of both halves, around that of all datasets."""
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 4000, 5, generator=generator, dtype=torch.float64)
    squares = torch.stack([redraw_noise(*halves) ** 2 for halves in zip(first, second, strict=True)])
    assert squares.mean().item() == pytest.approx(0.5, rel=0.05)
