"""The moving average of DDS: of the gradients of training, without further passes."""

import math

import pytest
import torch
from assertions import assert_resumes_exactly
from torch import nn
from toy_balancers import DEV, NAMES, balancer_of
from toys import batches, loss, mlp, train_step

from multidds import reference
from multidds.rules import MovingAverage, Scorer

EQUAL = dict.fromkeys(DEV, 1 / 3)


def averaging(model, train=None, dev=None, decay=0.9, compute=loss):
    train = batches(NAMES, 5) if train is None else train
    dev = batches(DEV, seed=1) if dev is None else dev
    return balancer_of(model, train, dev, compute=compute, rule=Scorer(MovingAverage(decay)))


def observed(balancer, model, name, b):
    """Takes the gradient of a batch as training does."""
    model.zero_grad()
    loss(model, b).backward()
    balancer.observe(name)
    gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    model.zero_grad()
    return gradient


@pytest.mark.claim("The method", "gradients that training has computed are not computed again")
@pytest.mark.parametrize("decay", [0.0, 0.7])
def test_averages_are_of_the_gradients_of_training_and_cost_no_passes(decay):
    model, train, dev = mlp(), batches(NAMES, 5), batches(DEV, seed=1)
    passes = []

    def counted(model, b):
        passes.append(id(b))
        return loss(model, b)

    balancer = averaging(model, train, dev, decay, counted)
    gradients = {name: [] for name in NAMES}
    for j in range(4):
        for name in ("a", "b"):  # "c" is never observed, so it is probed
            gradients[name].append(observed(balancer, model, name, train[name][j]))
        train_step(model, 70 + j, lr=0.1)
    gradients["c"].append(reference.gradient(model, loss, train["c"][:1]))
    averages = {}
    for name, seen in gradients.items():
        weights = [decay ** (len(seen) - 1 - j) for j in range(len(seen))]
        averages[name] = sum(w * g for w, g in zip(weights, seen, strict=True)) / sum(weights)
    update = balancer.step()
    expected = reference.rewards(model, loss, train, dev, EQUAL, stabilized=False, averages=averages)
    assert update.rewards == pytest.approx(expected, abs=1e-9)
    assert list(update.train_losses) == ["c"]
    assert sorted(passes) == sorted(id(b) for b in [*(dev[name][0] for name in DEV), train["c"][0]])
    tensors = balancer.state_dict()["tensors"]
    kept = torch.cat([t.reshape(-1) for key, t in tensors.items() if key.startswith("average.0.")])
    assert torch.allclose(kept, averages["a"], atol=1e-14)


def test_in_the_long_run_an_average_is_that_of_the_paper():
    """The paper begins with the first gradient itself, so the two differ until it is forgotten."""
    model, train = mlp(), batches(NAMES, 1)
    balancer, average = averaging(model, train, decay=0.5), None
    for number in range(40):
        train_step(model, number, lr=0.05)
        average = reference.moving_average(average, observed(balancer, model, "b", train["b"][0]), 0.5)
    tensors = balancer.state_dict()["tensors"]
    assert torch.allclose(torch.cat([t.reshape(-1) for t in tensors.values()]), average, atol=1e-9)


def test_a_non_finite_gradient_does_not_poison_an_average():
    model, train = mlp(), batches(NAMES)
    balancer = averaging(model, train)
    observed(balancer, model, "a", train["a"][0])
    before = balancer.state_dict()["tensors"]
    loss(model, train["a"][0]).backward()
    model[0].bias.grad[1] = math.nan
    balancer.observe("a")
    assert all(map(torch.equal, before.values(), balancer.state_dict()["tensors"].values()))
    model.zero_grad()
    assert balancer.step().skipped is None


def test_averages_of_other_parameters_are_forgotten_with_them():
    model = mlp()
    balancer = averaging(model)
    balancer.step()
    assert balancer.state_dict()["tensors"]
    model[2].weight = nn.Parameter(model[2].weight.detach().clone())
    balancer.refresh_parameters()
    assert balancer.state_dict()["tensors"] == {}
    assert balancer.step().skipped is None


def test_observing_is_free_for_other_rewards_and_refuses_what_it_cannot_use():
    balancer_of(rule=Scorer()).observe("a")
    balancer = averaging(mlp())
    with pytest.raises(ValueError, match=r"observe.*'q'.*'a', 'b', 'c'"):
        balancer.observe("q")
    with pytest.raises(ValueError, match=r"observe\('a'\).*no gradients"):
        balancer.observe("a")


def test_it_resumes_exactly():
    def make():
        model, train = mlp(), batches(NAMES, 8)
        balancer = averaging(model, train)

        def step(number):
            train_step(model, number, lr=0.1)
            observed(balancer, model, "ab"[number % 2], train["a"][number])
            return balancer.step().rewards

        return {"balancer": balancer, "model": model}, step

    assert_resumes_exactly(make, 6)


def test_a_state_of_other_parameters_is_refused_and_changes_nothing():
    one, other = averaging(mlp()), averaging(mlp(width=6))
    for balancer in (one, other):
        balancer.step()
    before = one.state_dict()
    with pytest.raises(ValueError, match="average.0.0.weight"):
        one.load_state_dict(other.state_dict())
    after = one.state_dict()
    assert all(map(torch.equal, before["tensors"].values(), after["tensors"].values()))
    assert before["rule"] == after["rule"]


def test_settings_are_shared_and_every_training_has_averages_of_its_own():
    rule = Scorer(MovingAverage(0.5))
    one, other = (balancer_of(rule=rule) for _ in range(2))
    one.step()
    assert other.state_dict()["tensors"] == {}
    assert rule == Scorer(MovingAverage(0.5)) != Scorer(MovingAverage())


@pytest.mark.parametrize("decay", [1.0, -0.1, math.nan])
def test_a_decay_that_forgets_nothing_or_more_is_refused(decay):
    with pytest.raises(ValueError, match=f"decay.*{decay}"):
        MovingAverage(decay)
