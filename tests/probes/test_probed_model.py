"""Gradients that leave no trace, and models that cannot be probed."""

import random

import numpy as np
import pytest
import torch
from assertions import assert_equal
from torch import nn
from torch.utils.data import DataLoader
from toy_balancers import DEV, NAMES, asked, balancer_of, probe_of, table_of
from toys import Everything, batch, batches, dataset, loss, mlp

from multidds import Probes, batches_of
from multidds.rules import Cosine, MovingAverage, RelevancePlan, Scorer

RULES = {
    "plan": RelevancePlan(),
    "paper": Scorer(Cosine(), table=64),
    "ahead": Scorer(Cosine(ahead=0.01)),
    "moving average": Scorer(MovingAverage()),
}


def everything_that_must_not_change(model, optimizer, generator):
    def copies(tensors):
        return [(id(t), None if t is None else t.clone()) for t in tensors]

    return {
        "parameters": copies(model.parameters()),
        "gradients": copies(p.grad for p in model.parameters()),
        "buffers": [(name, *pair) for name, b in model.named_buffers() for pair in copies([b])],
        "flags": [module.training for module in model.modules()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "optimizer": copies(v for state in optimizer.state.values() for v in state.values()),
        "torch": torch.get_rng_state(),
        "numpy": [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],
        "python": random.getstate(),
        "loader": generator.get_state(),
    }


def bf16(compute):
    def under_autocast(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return compute(model, batch)

    return under_autocast


def random_numbers(compute):
    """Uses every global generator."""

    def noisy(model, batch):
        x, y = batch
        return compute(model, (x + random.random() + np.random.rand() + torch.rand(()), y))

    return noisy


@pytest.mark.claim("The method", "a probe is invisible")
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("in_eval", [False, True])
@pytest.mark.parametrize("live_grad", [False, True])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("change", [lambda f: f, pytest.param(bf16, marks=pytest.mark.bfloat16), random_numbers])
def test_a_probe_is_invisible(mode, in_eval, live_grad, rule, change):
    torch.manual_seed(0)
    model, compute = Everything(), change(loss)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    data = {name: dataset(30, seed=i, dtype=torch.float32) for i, name in enumerate(NAMES)}
    compute(model, batch(1, dtype=torch.float32)).backward()
    optimizer.step()
    if not live_grad:
        optimizer.zero_grad()
    model.norm.eval()  # a part that the user keeps in eval mode
    if in_eval:
        model.eval()
    generator = torch.Generator().manual_seed(5)
    train = {name: DataLoader(d, batch_size=8, shuffle=True, generator=generator) for name, d in data.items()}
    dev = {name: batches_of(d, 8) for name, d in data.items()}
    probes = Probes(mode=mode, batches=2)
    balancer = balancer_of(model, train, dev, compute=compute, priority="low", rule=rule, probes=probes)
    before = everything_that_must_not_change(model, optimizer, generator)
    update = balancer.step()
    assert update.skipped is None
    assert_equal(everything_that_must_not_change(model, optimizer, generator), before)


def test_a_probe_restores_everything_when_the_loss_raises():
    model = Everything()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss(model, batch(1, dtype=torch.float32)).backward()
    calls = []

    def failing(model, batch):
        calls.append(1)
        value = loss(model, batch)
        if len(calls) == 4:
            raise RuntimeError("out of luck")
        return value

    train, dev = batches(NAMES, dtype=torch.float32), batches(DEV, seed=1, dtype=torch.float32)
    before = everything_that_must_not_change(model, optimizer, torch.default_generator)
    with pytest.raises(RuntimeError, match="out of luck"):
        asked(probe_of(model, train, dev, failing), Cosine(ahead=0.1))
    assert_equal(everything_that_must_not_change(model, optimizer, torch.default_generator), before)


@pytest.mark.parametrize(("role", "name", "kind"), [("train", "b", "dataset"), ("dev", "y", "dev set")])
def test_an_error_in_the_loss_keeps_its_type_and_names_the_data(role, name, kind):
    def failing(model, batch):
        if (batch[0] == 7).all():
            raise KeyError("labels")
        return loss(model, batch)

    data = {"train": batches(NAMES), "dev": batches(DEV, seed=1)}
    data[role][name][0][0].fill_(7)
    with pytest.raises(KeyError, match="labels") as caught:
        balancer_of(**data, compute=failing).step()
    assert f"{kind} {name!r}" in caught.value.__notes__[0]


def test_buffers_that_a_pass_moves_fills_or_adds_are_as_before_each():
    class Drifting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()
            self.register_buffer("scale", torch.ones(1, dtype=torch.float64))
            self.register_buffer("cache", None)

        def forward(self, x):
            self.scale *= 1.5
            self.cache = x.detach().mean(0)
            if "extra" not in self._buffers:
                self.register_buffer("extra", torch.ones(1))
            return self.inner(x) * self.scale

    model, train, dev = Drifting(), batches(NAMES), batches(DEV, seed=1)
    forwards = table_of(model, train, dev)
    backwards = table_of(model, dict(reversed(train.items())), dict(reversed(dev.items())))
    assert torch.allclose(forwards.dev_train, backwards.dev_train.flip(0, 1), atol=1e-14)
    assert model.cache is None
    assert "extra" not in dict(model.named_buffers())


def test_dropout_is_a_function_of_seed_role_name_update_and_batch():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)).double()
    same_batch = {"a": [batch(0)], "b": [batch(0)]}
    balancer = balancer_of(model, same_batch, same_batch)
    first, second = balancer.step(), balancer.step()
    found = [*first.train_losses.values(), *first.dev_losses.values(), *second.train_losses.values()]
    for options in ({"seed": 2}, {"mode": "eval"}):
        found.append(table_of(model, same_batch, same_batch, **options).train_losses["a"])
    found.append(table_of(model, same_batch, same_batch, batches=2).train_losses["a"])  # nor do batches share masks
    assert len(set(found)) == len(found)
    torch.manual_seed(123)
    assert table_of(model, same_batch, same_batch, batches=2).train_losses["a"] == found[-1]


def test_parts_that_training_keeps_in_eval_mode_stay_so_in_probes():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
    data = {"a": [batch(0)]}
    whole = table_of(model, data, data).train_losses["a"]
    model[1].eval()
    expected = loss(model, batch(0)).item()
    assert table_of(model, data, data).train_losses["a"] == pytest.approx(expected)
    assert whole != pytest.approx(expected)
    model.eval()  # after a validation: the probe goes back to train mode
    assert table_of(model, data, data).train_losses["a"] == pytest.approx(whole)


def test_probes_take_gradients_even_if_they_are_switched_off():
    model, train, dev = mlp(), batches(NAMES), batches(DEV, seed=1)
    expected = table_of(model, train, dev).dev_train
    for off in (torch.no_grad(), torch.inference_mode()):
        with off:
            assert torch.equal(table_of(model, train, dev).dev_train, expected)


def test_parameters_may_be_frozen_and_replaced_ones_need_a_refresh():
    model = mlp()
    balancer = balancer_of(model)
    model[0].requires_grad_(False)
    assert not balancer.parameters_changed
    assert balancer.step().skipped is None
    model[0].requires_grad_(True)
    model[2].weight = nn.Parameter(model[2].weight.detach().clone())
    assert balancer.parameters_changed
    with pytest.raises(ValueError, match="parameters were replaced or unfrozen"):
        balancer.step()
    balancer.refresh_parameters()
    assert balancer.step().skipped is None


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.ReLU(), "no trainable parameters"),
        (mlp().requires_grad_(False), "no trainable parameters"),
        (nn.DataParallel(mlp()), "DataParallel"),
        (print, "model.*builtin_function"),
    ],
)
def test_models_that_cannot_be_probed_are_refused(model, message):
    with pytest.raises((ValueError, TypeError), match=f"Balancer: .*{message}"):
        balancer_of(model)


def test_a_post_accumulate_grad_hook_is_refused_by_its_parameter():
    model = mlp()
    balancer = balancer_of(model)
    model[2].bias.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(ValueError, match=r"'2\.bias'.*hook"):
        probe_of(model)
    with pytest.raises(ValueError, match=r"'2\.bias'.*hook"):
        balancer.step()


@pytest.mark.bfloat16
def test_steps_of_narrow_parameters_are_refused_by_name():
    model, narrow = mlp(dtype=torch.bfloat16), r"'0\.weight' is torch\.bfloat16"
    with pytest.raises(ValueError, match=narrow):
        balancer_of(model, rule=Scorer(Cosine(ahead=0.001)))
