"""Rewards by batches that mix datasets: slopes of single examples along an averaged gradient of the dev sets."""

import math

import pytest
import torch
from torch import nn
from toy_balancers import MANY, MANY_DEV, estimator_of, many_sources
from toys import loss, losses, mlp

from multidds import Probes, reference
from multidds.probes.probe_sources import ProbeSources
from multidds.rewards import MeanSlope
from multidds.rewards.estimator import Part

SLOPES = "mixed batches give slopes of single examples along a direction averaged over updates"
TRAIN, DEV, SIZE = 21, 12, 4  # batches that mix datasets, batches that mix dev sets, examples of a batch


def mixed(model=None, compute=losses, dev_sets=20, **options):
    train, dev = many_sources(size=SIZE)
    return estimator_of(
        model, train, dev, MeanSlope(compute), part=Part(40, dev_sets, {}), mixed=(TRAIN, DEV), **options
    )


def examples(role, names, batches, number=0):
    """The examples that a round draws: as many of each set as the batches have room for."""
    train, dev = many_sources(size=SIZE)
    sources = ProbeSources("Balancer", {"train": train, "dev": dev}, 0)
    return sources.examples(role, dict.fromkeys(names, batches * SIZE // len(names)), number)


def gradient(model, example):
    x, y = example
    return reference.gradient(model, loss, [(x[None], y[None])])


def dev_direction(model, estimate, number=0):
    """The gradient of the weighted dev loss of a round, of equal priorities, by gradients of single examples."""
    drawn = examples("dev", estimate.dev_losses, DEV, number)
    return sum(gradient(model, example) for _, example in drawn) / len(drawn)


def slopes_along(v, model, estimate, number=0):
    """{dataset: slopes of its examples along v}."""
    slopes = {name: [] for name in estimate.rewards}
    for name, example in examples("train", estimate.rewards, TRAIN, number):
        slopes[name].append(float(gradient(model, example) @ v / v.norm()))
    return slopes


@pytest.mark.claim("The method", SLOPES)
def test_rewards_are_mean_slopes_of_gradients_of_single_examples():
    model = mlp()
    estimate = mixed(model).estimate({})
    slopes = slopes_along(dev_direction(model, estimate), model, estimate)
    assert estimate.rewards == pytest.approx({name: sum(s) / len(s) for name, s in slopes.items()}, abs=1e-6)
    errors = {name: torch.tensor(s).std().item() / math.sqrt(len(s)) for name, s in slopes.items()}
    assert estimate.errors == pytest.approx(errors, abs=1e-6)
    assert estimate.degrees == 1  # two examples of each
    assert set(estimate.train_losses) == set(MANY)
    assert set(estimate.dev_losses) < set(MANY_DEV)
    assert len(estimate.dev_losses) == 20


@pytest.mark.claim("The method", SLOPES)
def test_the_direction_is_averaged_the_newest_counts_most_and_a_skipped_one_nothing():
    model, broken = mlp(), []

    def compute(model, batch):
        return losses(model, batch) * (math.nan if broken else 1)

    estimator = mixed(model, compute)
    total, counted = 0.0, 0
    for number in range(4):
        broken[:] = [1] if number == 2 else []
        before = estimator.state_dict(), estimator.tensors()
        estimate = estimator.estimate({})
        if broken:
            assert "is not finite" in estimate.trouble
            assert estimator.state_dict() == before[0] | {"rounds": 3}
            assert all(map(torch.equal, estimator.tensors().values(), before[1].values()))
            continue
        counted += 1
        total = total + counted * dev_direction(model, estimate, number)
        slopes = slopes_along(total, model, estimate, number)
        assert estimate.rewards == pytest.approx({name: sum(s) / len(s) for name, s in slopes.items()}, abs=1e-6)
    direction = torch.cat([tensor.reshape(-1) for tensor in estimator.tensors().values()])
    assert torch.allclose(direction, total / 6, atol=1e-9)  # the weights 1, 2, 3


@pytest.mark.parametrize("count", [1, 3])
def test_another_dev_loss_takes_gradients_of_the_dev_sets(count):
    def accuracy_lost(model, b):
        return -model(b[0]).softmax(-1).gather(1, b[1][:, None]).mean()

    model, (train, dev) = mlp(), many_sources(size=SIZE)
    estimate = mixed(model, dev_sets=3, per_set=Probes(batches=count, dev_loss=accuracy_lost)).estimate({})
    sources = ProbeSources("Balancer", {"train": train, "dev": dev}, 0)
    drawn = {name: [b for _, b in sources.batches("dev", name, 0, range(count), count)] for name in estimate.dev_losses}
    v = sum(reference.gradient(model, accuracy_lost, b) for b in drawn.values())
    slopes = slopes_along(v, model, estimate)
    assert len(drawn) == 3
    assert estimate.rewards == pytest.approx({name: sum(s) / len(s) for name, s in slopes.items()}, abs=1e-6)
    expected = {name: sum(accuracy_lost(model, b).item() for b in each) / count for name, each in drawn.items()}
    assert estimate.dev_losses == pytest.approx(expected)


def test_dev_sets_without_a_gradient_give_rewards_of_zero():
    def flat(model, batch):
        return losses(model, batch) * 0

    estimate = mixed(compute=flat).estimate({})
    assert set(estimate.rewards.values()) == {0.0}
    assert "sum to zero" in estimate.notes[0]
    assert estimate.trouble is None


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (loss, r"one number per example.*\(\)"),
        (lambda model, batch: losses(model, batch)[1:], r"one number per example, 3.*\(2,\)"),
        (lambda model, batch: None, "NoneType"),
    ],
)
def test_losses_of_a_wrong_shape_are_refused_and_nothing_moves(compute, message):
    estimator = mixed(compute=compute)
    before = estimator.state_dict()
    with pytest.raises((ValueError, TypeError), match=rf"losses\(model, batch\).*{message}"):
        estimator.estimate({})
    assert estimator.state_dict() == before


def test_a_direction_of_other_parameters_is_refused_or_forgotten():
    model = mlp()
    estimator, other = mixed(model), mixed(mlp(width=6))
    estimator.estimate({})
    before = other.state_dict(), other.tensors()
    for tensors in (estimator.tensors(), {}):
        with pytest.raises(ValueError, match="other parameters"):
            other.load_state_dict(estimator.state_dict(), tensors)
        assert other.state_dict() == before[0]
        assert all(map(torch.equal, other.tensors().values(), before[1].values()))
    model[2].weight = nn.Parameter(model[2].weight.detach().clone())
    estimator.refresh_parameters()
    assert not any(tensor.any() for tensor in estimator.tensors().values())
    estimate = estimator.estimate({})
    slopes = slopes_along(dev_direction(model, estimate, 1), model, estimate, 1)
    assert estimate.rewards == pytest.approx({name: sum(s) / len(s) for name, s in slopes.items()}, abs=1e-6)
