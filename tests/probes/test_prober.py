import math
import random

import numpy as np
import pytest
import reference
import torch
from peak_tensor_memory import PeakTensorMemory
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from toys import Everything, batch, batches, dataset, loss, mlp

import multidds._base.randomness as randomness
from multidds import Balancer, Mixture, batches_of, rewards
from multidds.gradients.vectors import dot
from multidds.probes import probe

NAMES = ("a", "b", "c")
DEV = ("x", "y")


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
        "numpy": np.random.get_state()[1:3],
        "python": random.getstate(),
        "loader": generator.get_state(),
    }


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def bf16_loss(model, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return loss(model, batch)


def random_loss(model, batch):
    """Uses every global generator."""
    x, y = batch
    noise = random.random() + np.random.rand() + torch.rand(())
    return loss(model, (x + noise, y))


@pytest.mark.claim("The method", "a probe is invisible")
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("in_eval", [False, True])
@pytest.mark.parametrize("live_grad", [False, True])
@pytest.mark.parametrize("step_ahead", [None, 0.01])
@pytest.mark.parametrize("compute", [loss, pytest.param(bf16_loss, marks=pytest.mark.bfloat16), random_loss])
def test_a_probe_is_invisible(mode, in_eval, live_grad, step_ahead, compute):
    torch.manual_seed(0)
    model = Everything()
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
    balancer = Balancer(
        Mixture.uniform(NAMES),
        model,
        compute,
        train={name: DataLoader(d, batch_size=8, shuffle=True, generator=generator) for name, d in data.items()},
        dev={name: batches_of(d, 8) for name, d in data.items()},
        every=1,
        priority="low",
        reward="multidds",
        mode=mode,
        step_ahead=step_ahead,
        sketch=64,
        batches=2,
    )
    before = everything_that_must_not_change(model, optimizer, generator)
    update = balancer.step()
    after = everything_that_must_not_change(model, optimizer, generator)
    assert update.skipped is None
    for part in before:
        assert same(before[part], after[part]), part


def test_a_probe_restores_everything_when_the_loss_raises():
    model = Everything()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss(model, batch(1, dtype=torch.float32)).backward()
    generator = torch.Generator()
    calls = []

    def failing(model, batch):
        calls.append(1)
        value = loss(model, batch)
        if len(calls) == 4:
            raise RuntimeError("out of luck")
        return value

    train, dev = batches(NAMES, dtype=torch.float32), batches(DEV, seed=1, dtype=torch.float32)
    before = everything_that_must_not_change(model, optimizer, generator)
    with pytest.raises(RuntimeError, match="out of luck"):
        probe(model, failing, train, dev, step_ahead=0.1)
    after = everything_that_must_not_change(model, optimizer, generator)
    assert all(same(before[part], after[part]) for part in before)


def test_probing_works_where_gradients_are_switched_off():
    model, train, dev = mlp(), batches(NAMES), batches(DEV, seed=1)
    expected = probe(model, loss, train, dev).dev_train
    for off in (torch.no_grad(), torch.inference_mode()):
        with off:
            assert torch.equal(probe(model, loss, train, dev).dev_train, expected)


@pytest.mark.parametrize("step_ahead", [None, 0.05])
@pytest.mark.parametrize("count", [1, 3])
def test_the_table_is_that_of_the_gradients(step_ahead, count):
    model, train, dev = mlp(), batches(NAMES, count), batches(DEV, count, seed=1)
    alignment = probe(model, loss, train, dev, step_ahead=step_ahead)
    t = {i: reference.gradient(model, loss, train[i]) for i in NAMES}
    for column, i in enumerate(NAMES):
        here = model if step_ahead is None else reference.stepped(model, t[i], step_ahead)
        d = torch.stack([reference.gradient(here, loss, dev[k]) for k in DEV])
        dev_dev = alignment.dev_dev if step_ahead is None else alignment.dev_dev[column]
        dev_norms = alignment.dev_norms if step_ahead is None else alignment.dev_norms[:, column]
        assert torch.allclose(alignment.dev_train[:, column], d @ t[i], atol=1e-12)
        assert torch.allclose(dev_dev, d @ d.T, atol=1e-12)
        assert torch.allclose(dev_norms, d.norm(dim=1), atol=1e-12)
        assert alignment.train_norms[column] == pytest.approx(float(t[i].norm()))
    assert alignment.train_names == NAMES
    assert alignment.dev_names == DEV
    for i in NAMES:
        assert alignment.train_losses[i] == pytest.approx(sum(loss(model, b).item() for b in train[i]) / count)


@pytest.mark.claim("The method", "inner products are the first-order change of the dev loss")
def test_inner_products_are_the_first_order_change_of_the_dev_loss():
    # d_k . t_i is the rate at which the dev loss falls along -t_i: a central difference, no gradients involved.
    model, train, dev = mlp(), batches(NAMES), batches(DEV, seed=1)
    alignment = probe(model, loss, train, dev)
    h = 1e-5
    for column, i in enumerate(NAMES):
        t = reference.gradient(model, loss, train[i])
        for row, k in enumerate(DEV):
            ahead, behind = (loss(reference.stepped(model, t, step), dev[k][0]).item() for step in (h, -h))
            assert (behind - ahead) / (2 * h) == pytest.approx(float(alignment.dev_train[row, column]), abs=1e-8)


@pytest.mark.claim("The method", "step-ahead → shared θ as the step size → 0")
def test_step_ahead_becomes_shared_theta_as_the_step_size_goes_to_zero():
    model, train, dev = mlp(), batches(NAMES), batches(DEV, seed=1)
    shared = probe(model, loss, train, dev).cosines()
    distances = [(probe(model, loss, train, dev, step_ahead=eta).cosines() - shared).norm() for eta in (1, 0.1, 0.01)]
    assert distances[0] > 0.01
    assert distances[1] < 0.2 * distances[0]  # in proportion to the step size
    assert distances[2] < 0.2 * distances[1]


def test_sketches_give_the_same_table_nearly():
    model = mlp(width=2000)
    train, dev = batches(NAMES), batches(DEV, seed=1)
    exact = probe(model, loss, train, dev)
    for step_ahead in (None, 0.1):
        exact = probe(model, loss, train, dev, step_ahead=step_ahead)
        sketched = probe(model, loss, train, dev, step_ahead=step_ahead, sketch=2**14)
        assert sketched.dev_dev.shape == exact.dev_dev.shape
        assert (sketched.cosines() - exact.cosines()).abs().max() < 0.05
        assert not torch.equal(sketched.cosines(), exact.cosines())


def test_only_the_given_parameters_count():
    model, train, dev = mlp(), batches(NAMES), batches(DEV, seed=1)
    part = probe(model, loss, train, dev, params=model[2].parameters())
    model[0].requires_grad_(False)
    assert torch.allclose(part.dev_train, probe(model, loss, train, dev).dev_train, atol=1e-14)
    whole = probe(mlp(), loss, train, dev)
    assert not torch.allclose(part.dev_train, whole.dev_train, atol=1e-3)


def test_dropout_is_seeded_by_name_and_number_so_that_a_probe_repeats():
    model = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)).double()
    train, dev = batches(NAMES), batches(DEV, seed=1)
    first = probe(model, loss, train, dev, seed=1)
    torch.manual_seed(123)
    assert torch.equal(first.dev_train, probe(model, loss, train, dev, seed=1).dev_train)
    assert not torch.equal(first.dev_train, probe(model, loss, train, dev, seed=2).dev_train)
    assert not torch.equal(first.dev_train, probe(model, loss, train, dev, seed=1, mode="eval").dev_train)


def test_no_probe_changes_what_the_next_one_sees_through_a_buffer():
    class Drifting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()
            self.register_buffer("scale", torch.ones(1, dtype=torch.float64))

        def forward(self, x):
            self.scale *= 1.5
            return self.inner(x) * self.scale

    train, dev = batches(NAMES), batches(DEV, seed=1)
    forwards = probe(Drifting(), loss, train, dev)
    backwards = probe(Drifting(), loss, dict(reversed(train.items())), dict(reversed(dev.items())))
    assert torch.allclose(forwards.dev_train, backwards.dev_train.flip(0, 1), atol=1e-14)


@pytest.mark.bfloat16
def test_bfloat16_models_are_summed_in_float32():
    model = mlp(dtype=torch.bfloat16, width=64)
    train, dev = batches(NAMES, 8, dtype=torch.bfloat16), batches(DEV, 8, seed=1, dtype=torch.bfloat16)
    # The mean of the bfloat16 gradients of single batches, computed in float64.
    t = torch.stack([reference.gradient(model, loss, train[i]) for i in NAMES])
    d = torch.stack([reference.gradient(model, loss, dev[k]) for k in DEV])
    alignment = probe(model, loss, train, dev)
    exact = (d @ t.T) / (d.norm(dim=1)[:, None] * t.norm(dim=1))
    # loss / count is a power of two here, so single gradients are the same numbers.
    assert torch.allclose(alignment.cosines(), exact, atol=1e-5)


def test_sparse_gradients_count_as_dense_ones():
    def embedding_loss(model, batch):
        return model(batch).square().mean()

    tables = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Embedding(10, 3, sparse=sparse).double()
        ids = {name: [torch.tensor([i, 2 * i, 5])] for i, name in enumerate(NAMES)}
        tables.append(probe(model, embedding_loss, ids, ids).dev_train)
    assert torch.allclose(*tables, atol=1e-14)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_models_can_be_probed(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def forward(self, x):
            return self.inner[2](checkpoint(self.inner[:2], x.requires_grad_(), use_reentrant=reentrant))

    train, dev = batches(NAMES), batches(DEV, seed=1)
    expected = probe(mlp(), loss, train, dev).dev_train
    assert torch.allclose(probe(Checkpointed(), loss, train, dev).dev_train, expected, atol=1e-14)


@pytest.mark.bfloat16
def test_step_ahead_under_one_autocast_context_does_not_see_old_casts():
    model, train, dev = mlp(dtype=torch.float32), batches(NAMES, dtype=torch.float32), batches(DEV, 1, 1, torch.float32)
    inside = probe(model, bf16_loss, train, dev, step_ahead=1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        around = probe(model, loss, train, dev, step_ahead=1.0)
    assert torch.equal(inside.dev_train, around.dev_train)


@pytest.mark.claim("The method", "one vector and the table agree")
def test_the_two_ways_to_a_reward_agree():
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        train, dev = batches(NAMES, 2, dtype=dtype), batches(DEV, 2, seed=1, dtype=dtype)
        for step_ahead in (None, 0.1):
            for name, function in (("multidds", rewards.multidds), ("multidds-s", rewards.multidds_s)):
                by_vector = Balancer(
                    Mixture.uniform(NAMES), mlp(dtype=dtype), loss, train=train, dev=dev, every=1, batches=2,
                    reward=name, step_ahead=step_ahead,
                ).step()  # fmt: skip
                by_table = function(probe(mlp(dtype=dtype), loss, train, dev, step_ahead=step_ahead))
                assert list(by_vector.rewards.values()) == pytest.approx(by_table.tolist(), abs=tolerance)


@pytest.mark.claim("The method", "one vector of memory, whatever n and K")
@pytest.mark.parametrize("n", [2, 9])
def test_an_update_needs_one_vector_more_whatever_n_and_k_are(n):
    names = [f"d{i}" for i in range(n)]
    model = mlp(dtype=torch.float32, width=20000)
    vector = sum(p.numel() * 4 for p in model.parameters())
    small = batches(names, dtype=torch.float32)
    with PeakTensorMemory() as training:
        loss(model, small["d0"][0]).backward()
    model.zero_grad()
    for reward in ("multidds", "multidds-s"):
        balancer = Balancer(Mixture.uniform(names), model, loss, train=small, dev=small, every=1, reward=reward)
        with PeakTensorMemory() as updating:
            balancer.step()
        assert updating.peak - training.peak < 1.3 * vector
    options = {"every": 1, "reward": "multidds", "step_ahead": 0.1}
    balancer = Balancer(Mixture.uniform(names), model, loss, train=small, dev=small, **options)
    with PeakTensorMemory() as ahead:
        balancer.step()
    assert ahead.peak - training.peak < 3.3 * vector  # a copy of theta, t_i and v
    with PeakTensorMemory() as with_table:
        probe(model, loss, small, small)  # K gradients beside the one that training has too
    assert (n - 0.5) * vector < with_table.peak - training.peak < (n + 0.5) * vector


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, t, d: probe(m, loss, {}, d), "probe: train_batches is empty"),
        (lambda m, t, d: probe(m, loss, t, {}), "probe: dev_batches is empty"),
        (lambda m, t, d: probe(m, loss, t, {"x": []}), "probe: dev 'x' must be a list with at least one batch"),
        (lambda m, t, d: probe(m, loss, t, d, mode="test"), "mode must be 'train' or 'eval', but it is 'test'"),
        (lambda m, t, d: probe(m, loss, t, d, params=mlp().parameters()), "params must be parameters of the model"),
        (lambda m, t, d: probe(m, loss, t, d, params=[]), "no trainable parameters in params"),
        (
            lambda m, t, d: probe(m, loss, t, d, sketch=0),
            "the number of buckets must be a whole number of at least 1, but it is 0",
        ),
        (lambda m, t, d: probe(m, loss, t, d, step_ahead=-1.0), "probe: step_ahead must be a positive step size"),
        (lambda m, t, d: probe(nn.ReLU(), loss, t, d), "probe: the model has no trainable parameters"),
        (lambda m, t, d: probe(nn.DataParallel(m), loss, t, d), "a DataParallel inside the model is not supported"),
        (
            lambda m, t, d: probe(m, lambda m, b: m(b[0]), t, d),
            r"must return a scalar tensor, got shape \(7, 3\) for dev 'x'",
        ),
        (lambda m, t, d: probe(m, lambda m, b: 1.5, t, d), "must return a scalar tensor, got float for dev 'x'"),
        (
            lambda m, t, d: probe(m, lambda m, b: b[0].sum(), t, d),
            "the loss of dev 'x' does not depend on any trainable parameter",
        ),
    ],
)
def test_what_cannot_be_probed_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call(mlp(), batches(NAMES), batches(DEV, seed=1))


def test_a_post_accumulate_grad_hook_is_refused_by_its_parameter():
    model = mlp()
    model[2].bias.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(ValueError, match=r"the parameter '2\.bias' has a post-accumulate-grad hook"):
        probe(model, loss, batches(NAMES), batches(DEV))


def test_a_thing_that_is_no_module_is_refused():
    with pytest.raises(TypeError, match="model must be a torch.nn.Module, got function"):
        probe(lambda x: x, loss, batches(NAMES), batches(DEV))


def test_dropout_differs_between_names_roles_updates_and_batches():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)).double()
    same_batch = {"a": [batch(0)], "b": [batch(0)]}
    balancer = Balancer(Mixture.uniform("ab"), model, loss, train=same_batch, dev=same_batch, every=1)
    first, second = balancer.step(), balancer.step()
    losses = [*first.train_losses.values(), *first.dev_losses.values(), *second.train_losses.values()]
    assert len(set(losses)) == len(losses)
    once, twice = (probe(model, loss, {"a": [batch(0)] * count}, same_batch).train_losses["a"] for count in (1, 2))
    assert once != twice  # nor do the batches of one dataset share their masks


def test_parts_that_training_keeps_in_eval_mode_stay_so_in_probes():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
    data = {"a": [batch(0)]}
    whole = probe(model, loss, data, data).train_losses["a"]
    model[1].eval()
    expected = loss(model, batch(0)).item()
    assert probe(model, loss, data, data).train_losses["a"] == pytest.approx(expected)
    assert whole != pytest.approx(expected)
    model.eval()  # after a validation: the probe goes back to train mode
    assert probe(model, loss, data, data).train_losses["a"] == pytest.approx(whole)


def test_long_float32_sums_stay_exact_to_six_digits():
    a = torch.randn(12_000_000, generator=torch.Generator().manual_seed(0))
    exact = float(a.double() @ a.double())
    assert dot([a], [a]) == pytest.approx(exact, rel=1e-6)
    assert abs(float(torch.dot(a, a)) / exact - 1) > 1e-5  # what one float32 sum would have given


def test_infinities_of_both_signs_skip_the_update():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.u, self.v = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def linear(model, b):
        return (model.u * b[0] + model.v * b[1]).sum()

    train, dev = {"a": [torch.ones(2, 1)]}, {"x": [torch.tensor([[math.inf], [-math.inf]])]}
    balancer = Balancer(Mixture.uniform("a"), Two(), linear, train=train, dev=dev, every=1, reward="multidds")
    assert "the gradient of dev set 'x' is not finite" in balancer.step().skipped


def test_buffers_that_a_forward_pass_fills_or_adds_are_gone_after_a_probe():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()
            self.register_buffer("cache", None)

        def forward(self, x):
            self.cache = x.detach().mean(0)
            if "extra" not in self._buffers:
                self.register_buffer("extra", torch.ones(1))
            return self.inner(x)

    model = Lazy()
    probe(model, loss, batches(NAMES), batches(DEV))
    assert model.cache is None
    assert "extra" not in dict(model.named_buffers())


@pytest.mark.bfloat16
def test_step_ahead_of_narrow_parameters_is_refused_by_name():
    with pytest.raises(
        ValueError, match=r"step_ahead is lost in rounding: the parameter '0\.weight' is torch\.bfloat16"
    ):
        probe(mlp(dtype=torch.bfloat16), loss, batches(NAMES), batches(DEV), step_ahead=0.001)
    with pytest.raises(ValueError, match="lost in rounding"):
        Balancer(
            Mixture.uniform(NAMES), mlp(dtype=torch.bfloat16), loss, train=batches(NAMES), dev=batches(DEV), every=1,
            step_ahead=0.001,
        )  # fmt: skip


def test_parameters_may_be_frozen_but_not_replaced_or_unfrozen():
    model = mlp()
    balancer = Balancer(Mixture.uniform(NAMES), model, loss, train=batches(NAMES), dev=batches(DEV), every=1)
    model[0].requires_grad_(False)
    assert balancer.step().skipped is None
    model[2].weight = nn.Parameter(model[2].weight.detach().clone())
    with pytest.raises(ValueError, match="parameters were replaced or unfrozen since its construction"):
        balancer.step()


@pytest.mark.bfloat16
def test_sketches_are_multiplied_in_full_precision_under_autocast():
    model, train, dev = mlp(dtype=torch.float32), batches(NAMES, dtype=torch.float32), batches(DEV, 1, 1, torch.float32)
    outside = probe(model, bf16_loss, train, dev, sketch=64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = probe(model, loss, train, dev, sketch=64)
    assert torch.equal(outside.dev_train, inside.dev_train)


def test_random_states_of_an_accelerator_are_seeded_and_put_back(monkeypatch):
    """There is no accelerator here, so one is stood in for, with the calls of torch.cuda, torch.mps and "
    "torch.xpu."""

    class Module:
        generator = torch.Generator().manual_seed(7)

        @classmethod
        def get_rng_state(cls, device):
            return cls.generator.get_state()

        @classmethod
        def set_rng_state(cls, state, device):
            cls.generator.set_state(state)

    device = torch.device("cpu", 0)
    monkeypatch.setattr(torch, "get_device_module", lambda device: Module)
    monkeypatch.setattr(randomness, "_accelerators", list)
    before = Module.generator.get_state()
    with randomness.preserved([device]):
        randomness.seed_all(3, [device])
        first = torch.rand(4, generator=Module.generator)
        randomness.seed_all(3, [device])
        assert torch.equal(first, torch.rand(4, generator=Module.generator))
    assert torch.equal(Module.generator.get_state(), before)
