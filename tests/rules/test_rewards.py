"""The paper's rewards: against the paper written naively, tables, step ahead, memory."""

import math

import pytest
import torch
from scaling import PeakTensorMemory
from toy_balancers import DEV, NAMES, asked, balancer_of, probe_of
from toys import batches, loss, mlp, train_step

from multidds import Mixture, Probes, reference
from multidds.rules import Cosine, Scorer, StabilizedCosine

EQUAL = dict.fromkeys(DEV, 1 / 3)
KINDS = {"multidds": (Cosine, False), "multidds-s": (StabilizedCosine, True)}


@pytest.mark.claim("The method", "rewards are the paper's, to 1e-9")
@pytest.mark.parametrize("priority", ["regular", "low", "high", {"x": 3.0, "z": 1.0}])
@pytest.mark.parametrize("ahead", [None, 0.1])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(("kind", "stabilized"), KINDS.values(), ids=KINDS)
def test_rewards_are_those_of_the_paper(kind, stabilized, count, ahead, priority):
    model, train, dev = mlp(), batches(NAMES, count), batches(DEV, count, seed=1)
    found = asked(probe_of(model, train, dev, priority=priority, batches=count), kind(ahead=ahead))
    if isinstance(priority, str):
        weights = reference.priority(priority, model, loss, dev)
    else:
        weights = {name: priority.get(name, 0.0) / 4 for name in DEV}
    expected = reference.rewards(model, loss, train, dev, weights, stabilized, ahead)
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.claim("The method", "updates are the paper's, to 1e-9")
@pytest.mark.parametrize("priority", ["regular", "low", "high"])
@pytest.mark.parametrize("ahead", [None, 0.1])
@pytest.mark.parametrize(("kind", "stabilized"), KINDS.values(), ids=KINDS)
def test_a_training_with_updates_is_algorithm_1(kind, stabilized, ahead, priority):
    model, train, dev = mlp(), batches(NAMES), batches(DEV, seed=1)
    mixture = Mixture({"a": 0.2, "b": 0.3, "c": 0.5})
    rule = Scorer(kind(ahead=ahead), lr=0.4, floor=0.0)
    balancer = balancer_of(model, train, dev, mixture, every=2, priority=priority, rule=rule)
    psi = {name: math.log(p) for name, p in mixture.probabilities.items()}
    for number in range(6):
        train_step(model, number)
        if balancer.step() is not None:
            psi = reference.update(psi, model, loss, train, dev, 0.4, priority, stabilized, ahead)
        assert mixture.probabilities == pytest.approx(reference.softmax(psi), abs=1e-9)
    assert len(balancer.history) == 3


@pytest.mark.claim("The method", "step-ahead → shared θ as the step size → 0")
@pytest.mark.parametrize("kind", [Cosine, StabilizedCosine])
def test_step_ahead_becomes_shared_theta_as_the_step_size_goes_to_zero(kind):
    sets = mlp(), batches(NAMES), batches(DEV, seed=1)
    shared = asked(probe_of(*sets), kind())
    found = [asked(probe_of(*sets), kind(ahead=eta)) for eta in (1, 0.1, 0.01)]
    distances = [math.dist(each.values(), shared.values()) for each in found]
    assert distances[0] > 0.01
    assert distances[1] < 0.2 * distances[0]  # in proportion to the step size
    assert distances[2] < 0.2 * distances[1]


@pytest.mark.claim("The method", "one vector and the table agree")
@pytest.mark.parametrize(("kind", "formula"), [(Cosine, "multidds"), (StabilizedCosine, "multidds_s")])
@pytest.mark.parametrize(("table", "limit"), [(2**16, 0.02), (2**10, 0.16)])
def test_the_table_of_an_update_agrees_with_its_rewards(kind, formula, table, limit):
    """To five errors of the sketch; and rewards are exact, whatever the table is made of."""
    model, probes = mlp(width=3000), Probes(batches=2)
    exact = balancer_of(model, rule=Scorer(kind()), probes=probes).step()
    update = balancer_of(model, rule=Scorer(kind(), table=table), probes=probes).step()
    assert exact.alignment is None
    assert update.rewards == pytest.approx(exact.rewards, abs=1e-12)
    assert update.mixture == pytest.approx(exact.mixture, abs=1e-12)
    rewards = getattr(update.alignment, formula)(torch.tensor([1 / 3] * 3, dtype=torch.float64))
    found = dict(zip(update.alignment.train_names, rewards.tolist(), strict=True))
    assert found == pytest.approx(exact.rewards, abs=limit)
    assert found != pytest.approx(exact.rewards, abs=1e-9)
    assert update.alignment.train_losses == update.train_losses
    assert update.alignment.dev_losses == update.dev_losses


def test_one_table_has_both_rewards():
    """Which the paper's figure of the variance of rewards needs; small gradients are sketched without loss."""
    model, train, dev = mlp(), batches(NAMES, 4), batches(DEV, 4, seed=1)
    table = balancer_of(model, train, dev, rule=Scorer(table=2**16), priority={"x": 3.0, "y": 1.0}).step().alignment
    weights = torch.tensor([0.75, 0.25, 0.0], dtype=torch.float64)
    first = [{name: each[:1] for name, each in sets.items()} for sets in (train, dev)]
    named = dict(zip(DEV, weights.tolist(), strict=True))
    for found, stabilized in ((table.multidds(weights), False), (table.multidds_s(weights), True)):
        expected = reference.rewards(model, loss, *first, named, stabilized)
        assert found.tolist() == pytest.approx(list(expected.values()), abs=1e-9)


@pytest.mark.claim("The method", "one vector of memory, whatever n and K")
@pytest.mark.parametrize("n", [2, 9])
def test_an_update_needs_one_vector_more_whatever_n_and_k_are(n):
    names = [f"d{i}" for i in range(n)]
    model = mlp(dtype=torch.float32, width=20000)
    vector = sum(p.numel() * 4 for p in model.parameters())
    sets = batches(names, dtype=torch.float32)
    with PeakTensorMemory() as training:
        loss(model, sets["d0"][0]).backward()
    model.zero_grad()

    def vectors(reward):
        probe = probe_of(model, sets, sets)
        with PeakTensorMemory() as updating:
            asked(probe, reward)
        return (updating.peak - training.peak) / vector

    assert vectors(Cosine()) < 1.3
    assert vectors(StabilizedCosine()) < 1.3
    assert vectors(Cosine(ahead=0.1)) < 3.3  # a copy of theta, t_i and v


@pytest.mark.parametrize("kind", [Cosine, StabilizedCosine])
@pytest.mark.parametrize("ahead", [0.0, -1.0, math.nan, math.inf])
def test_a_step_ahead_that_is_none_is_refused(kind, ahead):
    with pytest.raises(ValueError, match=f"{kind.__name__}: ahead.*{ahead}"):
        kind(ahead=ahead)
