"""Rewards by gradients: two ways to each, tables, standard errors, moving averages, and gradients of no use."""

import math

import pytest
import torch
from scaling import PeakTensorMemory
from torch import nn
from toy_balancers import DEV, NAMES, estimator_of
from toys import batches, loss, mlp, train_step

from multidds import reference
from multidds.probes import probe
from multidds.rewards import Cosine, FromTable, MovingAverage, StabilizedCosine, multidds, multidds_s

EQUAL = dict.fromkeys(DEV, 1 / 3)


def rewards_of(reward=None, **options):
    return estimator_of(reward=reward, **options).estimate({}).rewards


@pytest.mark.claim("The method", "one vector and the table agree")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("ahead", [None, 0.1])
@pytest.mark.parametrize(("kind", "formula"), [(Cosine, multidds), (StabilizedCosine, multidds_s)])
def test_one_vector_and_the_table_agree(dtype, tolerance, ahead, kind, formula):
    given = {"model": mlp(dtype=dtype), "train": batches(NAMES, dtype=dtype), "dev": batches(DEV, 1, 1, dtype)}
    by_vector = estimator_of(reward=kind(ahead, table="exact"), **given).estimate({})
    table = probe(given["model"], loss, given["train"], given["dev"], step_ahead=ahead)
    assert list(by_vector.rewards.values()) == pytest.approx(formula(table).tolist(), abs=tolerance)
    assert torch.allclose(by_vector.alignment.dev_train, table.dev_train, atol=tolerance)
    for sketch, limit in (("exact", tolerance), (2**12, 0.1)):
        own = estimator_of(reward=FromTable(formula, sketch, ahead), **given).estimate({})
        assert own.rewards == pytest.approx(by_vector.rewards, abs=limit)
        sketched = estimator_of(reward=kind(ahead, sketch), **given).estimate({})
        assert sketched.rewards == pytest.approx(by_vector.rewards, abs=1e-12)  # exact, whatever the table is made of
        assert torch.equal(sketched.alignment.dev_train, own.alignment.dev_train)


@pytest.mark.parametrize("table", [None, 64])
def test_dev_sets_of_weight_zero_are_probed_for_tables_only(table):
    estimator = estimator_of(reward=StabilizedCosine(table=table))
    estimator.dev.weights.priority = {"x": 1.0}
    estimate = estimator.estimate({})
    assert set(estimate.dev_losses) == (set(DEV) if table else {"x"})
    assert estimate.rewards == pytest.approx(rewards_of(dev=batches(["x"], 4, seed=1)), abs=1e-12)


@pytest.mark.parametrize("table", [None, "exact"])
def test_standard_errors_come_from_the_halves_of_a_probe(table):
    model, train, dev = mlp(), batches(NAMES, 4), batches(DEV, 4, seed=1)
    reward = StabilizedCosine(table=table)
    estimate = estimator_of(model, train, dev, reward, batches_per_set=4, errors=True).estimate({})
    halves = [
        [{name: b[half] for name, b in given.items()} for given in (train, dev)]
        for half in (slice(0, 4, 2), slice(1, 4, 2))
    ]
    first, second = (reference.rewards(model, loss, *half, EQUAL, stabilized=True) for half in halves)
    difference = {i: first[i] - second[i] for i in NAMES}
    centre = sum(difference.values()) / 3
    errors = {i: abs(d - centre) / 2 * math.sqrt(3 / 2) for i, d in difference.items()}
    assert estimate.errors == pytest.approx(errors, abs=0.02)  # of sketches
    assert estimate.degrees == 1
    whole = probe(model, loss, train, dev).cosines()
    one, other = (probe(model, loss, *half).cosines() for half in halves)
    for row, k in enumerate(DEV):
        for column, i in enumerate(NAMES):
            cosine, error = estimate.relevance[k][i]
            assert cosine == pytest.approx(whole[row, column].item(), abs=0.02)
            assert error == pytest.approx(abs(one - other)[row, column].item() / 2, abs=0.02)


def test_equal_halves_have_no_noise_and_one_batch_has_no_halves():
    same = [{name: [b[0], b[0]] for name, b in given.items()} for given in (batches(NAMES), batches(DEV, seed=1))]
    estimate = estimator_of(None, *same, batches_per_set=2, errors=True).estimate({})
    assert list(estimate.errors.values()) == pytest.approx([0.0] * 3, abs=1e-6)
    estimate = estimator_of(reward=Cosine(table=64), errors=True).estimate({})
    assert estimate.errors == {}
    assert estimate.relevance is None


# ------------------------------------------------------------------------------------------ moving averages


def observed(estimator, model, name, b):
    """Takes the gradient of a batch as training does."""
    model.zero_grad()
    loss(model, b).backward()
    estimator.observe(name)
    gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    model.zero_grad()
    return gradient


@pytest.mark.claim("The method", "gradients that training has computed are not computed again")
@pytest.mark.parametrize("decay", [0.0, 0.7])
def test_moving_averages_are_of_the_gradients_of_training_and_cost_no_passes(decay):
    model, train, dev = mlp(), batches(NAMES, 5), batches(DEV, seed=1)
    passes = []

    def counted(model, b):
        passes.append(id(b))
        return loss(model, b)

    estimator = estimator_of(model, train, dev, MovingAverage(decay), counted)
    gradients = {name: [] for name in NAMES}
    for j in range(4):
        for name in ("a", "b"):  # "c" is never observed, so it is probed
            gradients[name].append(observed(estimator, model, name, train[name][j]))
        train_step(model, 70 + j, lr=0.1)
    gradients["c"].append(reference.gradient(model, loss, train["c"][:1]))
    averages = {}
    for name, seen in gradients.items():
        weights = [decay ** (len(seen) - 1 - j) for j in range(len(seen))]
        averages[name] = sum(w * g for w, g in zip(weights, seen, strict=True)) / sum(weights)
    estimate = estimator.estimate({})
    expected = reference.rewards(model, loss, train, dev, EQUAL, stabilized=False, averages=averages)
    assert estimate.rewards == pytest.approx(expected, abs=1e-9)
    assert list(estimate.train_losses) == ["c"]
    assert sorted(passes) == sorted(id(b) for b in [*(dev[name][0] for name in DEV), train["c"][0]])
    kept = torch.cat([t.reshape(-1) for key, t in estimator.tensors().items() if key.startswith("average.0.")])
    assert torch.allclose(kept, averages["a"], atol=1e-14)


def test_a_non_finite_gradient_does_not_poison_a_moving_average():
    model, train = mlp(), batches(NAMES)
    estimator = estimator_of(model, train, reward=MovingAverage())
    observed(estimator, model, "a", train["a"][0])
    before = estimator.tensors()
    loss(model, train["a"][0]).backward()
    model[0].bias.grad[1] = math.nan
    estimator.observe("a")
    assert all(map(torch.equal, before.values(), estimator.tensors().values()))
    model.zero_grad()
    assert estimator.estimate({}).trouble is None


def test_averages_of_other_parameters_are_forgotten_with_them():
    model = mlp()
    estimator = estimator_of(model, reward=MovingAverage())
    estimator.estimate({})
    model[2].weight = nn.Parameter(model[2].weight.detach().clone())
    estimator.refresh_parameters()
    assert estimator.tensors() == {}
    assert estimator.estimate({}).trouble is None


def test_observing_is_free_for_other_rewards_and_refuses_what_it_cannot_use():
    estimator_of().observe("a")
    with pytest.raises(ValueError, match=r"observe.*'q'.*'a', 'b', 'c'"):
        estimator_of().observe("q")
    with pytest.raises(ValueError, match=r"observe\('a'\).*no gradients"):
        estimator_of(reward=MovingAverage()).observe("a")


# ------------------------------------------------------------------------------------------ memory and trouble


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
        estimator = estimator_of(model, sets, sets, reward)
        with PeakTensorMemory() as updating:
            estimator.estimate({})
        return (updating.peak - training.peak) / vector

    assert vectors(Cosine()) < 1.3
    assert vectors(StabilizedCosine()) < 1.3
    assert vectors(Cosine(ahead=0.1)) < 3.3  # a copy of theta, t_i and v
    assert n - 0.5 < vectors(FromTable(multidds, "exact")) < n + 0.5  # K gradients beside the one of training


def infinite_at(marked):
    def compute(model, b):
        return loss(model, b) + (math.inf if torch.equal(b[0], marked) else 0.0)

    return compute


@pytest.mark.parametrize("priority", ["regular", "low", "high", {"x": 1.0, "y": 1.0}])
@pytest.mark.parametrize(("kind", "name"), [("dev set", "y"), ("dataset", "b")])
def test_a_loss_that_is_not_finite_is_said_whatever_the_priority(priority, kind, name):
    """Its gradient is finite. With "high" the dev set would be ranked last and not probed."""
    marked = (batches(DEV, seed=1) if kind == "dev set" else batches(NAMES))[name][0][0]
    estimator = estimator_of(None, batches(NAMES), batches(DEV, seed=1), compute=infinite_at(marked))
    estimator.dev.weights.priority = priority
    assert estimator.estimate({}).trouble == f"the loss of {kind} {name!r} is not finite"


def test_the_loss_of_a_dev_set_of_weight_0_is_said_too():
    dev = batches(DEV, seed=1)
    estimator = estimator_of(None, batches(NAMES), dev, FromTable(multidds, sketch=16), infinite_at(dev["y"][0][0]))
    estimator.dev.weights.priority = {"x": 1.0}
    estimate = estimator.estimate({})
    assert estimate.trouble is None
    assert [note for note in estimate.notes if "dev set 'y' is not finite" in note]


def test_infinities_of_both_signs_are_not_finite():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.u, self.v = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def linear(model, b):
        return (model.u * b[0] + model.v * b[1]).sum()

    train, dev = {"a": [torch.ones(2, 1)]}, {"x": [torch.tensor([[math.inf], [-math.inf]])]}
    assert "gradient of dev set 'x'" in estimator_of(Two(), train, dev, Cosine(), linear).estimate({}).trouble


@pytest.mark.parametrize("reward", [Cosine(), StabilizedCosine()])
def test_zero_gradients_count_as_cosines_of_zero_and_are_noted(reward):
    def compute(model, b):
        return loss(model, b) * b[0].abs().max().clamp(max=1)

    train, dev = batches(NAMES), batches(DEV, seed=1)
    train["b"][0][0].zero_()
    estimate = estimator_of(None, train, dev, reward, compute).estimate({})
    assert estimate.rewards["b"] == 0
    assert [note for note in estimate.notes if "dataset 'b' is zero" in note]
    for name in DEV:
        dev[name][0][0].zero_()
    estimate = estimator_of(None, train, dev, reward, compute).estimate({})
    assert set(estimate.rewards.values()) == {0.0}
    notes = " ".join(estimate.notes)
    assert "dev set 'x' is zero" in notes
    assert "sum to zero" in notes
    assert estimate.trouble is None


@pytest.mark.parametrize(
    ("values", "message"),
    [(torch.zeros(2), r"3 datasets.*\(2,\)"), (torch.zeros(3, 1), r"\(3, 1\)"), (None, "NoneType")],
)
def test_a_reward_function_that_gives_no_number_per_dataset_is_an_error(values, message):
    with pytest.raises((ValueError, TypeError), match=f"reward function.*{message}"):
        rewards_of(FromTable(lambda alignment, weights: values, sketch=16))


def test_a_reward_function_that_gives_nan_is_trouble():
    def broken(alignment, weights):
        return torch.tensor([0.0, math.nan, 1.0])

    estimate = estimator_of(reward=FromTable(broken, sketch=16)).estimate({})
    assert estimate.trouble == "the reward of dataset 'b' is not finite"


def test_inference_mode_and_the_default_device_do_not_matter():
    for reward in (MovingAverage(table=64), Cosine(ahead=0.1)):
        estimator = estimator_of(reward=reward)
        with torch.inference_mode():
            estimator.estimate({})
        torch.set_default_device("meta")  # nothing of the package may be created there
        try:
            assert estimator.estimate({}).trouble is None
        finally:
            torch.set_default_device(None)
