"""`probe`: the table of inner products is that of the gradients, for any model that can be probed."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from toy_balancers import DEV, NAMES
from toys import batches, loss, mlp

from multidds import reference
from multidds.probes import probe


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
        assert alignment.train_losses[i] == pytest.approx(sum(loss(model, b).item() for b in train[i]) / count)
    assert (alignment.train_names, alignment.dev_names) == (NAMES, DEV)


@pytest.mark.claim("The method", "inner products are the first-order change of the dev loss")
def test_inner_products_are_the_first_order_change_of_the_dev_loss():
    """d_k . t_i is the rate at which the dev loss falls along -t_i: a central difference, no gradients involved."""
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


@pytest.mark.parametrize("step_ahead", [None, 0.1])
def test_sketches_give_nearly_the_same_table(step_ahead):
    model, train, dev = mlp(width=2000), batches(NAMES), batches(DEV, seed=1)
    exact, sketched = (probe(model, loss, train, dev, step_ahead, sketch) for sketch in (None, 2**14))
    assert sketched.dev_dev.shape == exact.dev_dev.shape
    assert 0 < (sketched.cosines() - exact.cosines()).abs().max() < 0.05


def test_only_the_given_parameters_count():
    model, train, dev = mlp(), batches(NAMES), batches(DEV, seed=1)
    whole, part = (probe(model, loss, train, dev, params=params) for params in (None, model[2].parameters()))
    assert not torch.allclose(part.dev_train, whole.dev_train, atol=1e-3)
    model[0].requires_grad_(False)
    assert torch.allclose(part.dev_train, probe(model, loss, train, dev).dev_train, atol=1e-14)


@pytest.mark.bfloat16
def test_bfloat16_models_are_summed_in_float32():
    model = mlp(dtype=torch.bfloat16, width=64)
    train, dev = batches(NAMES, 8, dtype=torch.bfloat16), batches(DEV, 8, seed=1, dtype=torch.bfloat16)
    # The mean of the bfloat16 gradients of single batches, computed in float64.
    t = torch.stack([reference.gradient(model, loss, train[i]) for i in NAMES])
    d = torch.stack([reference.gradient(model, loss, dev[k]) for k in DEV])
    exact = (d @ t.T) / (d.norm(dim=1)[:, None] * t.norm(dim=1))
    # loss / count is a power of two here, so single gradients are the same numbers.
    assert torch.allclose(probe(model, loss, train, dev).cosines(), exact, atol=1e-5)


@pytest.mark.bfloat16
@pytest.mark.parametrize("options", [{"step_ahead": 1.0}, {"sketch": 64}])
def test_an_autocast_around_a_probe_changes_nothing_but_the_loss(options):
    """A step ahead does not reuse old casts, and sketches are multiplied in full precision."""

    def bf16_loss(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(model, batch)

    model, train, dev = mlp(dtype=torch.float32), batches(NAMES, dtype=torch.float32), batches(DEV, 1, 1, torch.float32)
    inside = probe(model, bf16_loss, train, dev, **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        around = probe(model, loss, train, dev, **options)
    assert torch.equal(inside.dev_train, around.dev_train)


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_batches": {}}, "train_batches is empty"),
        ({"dev_batches": {}}, "dev_batches is empty"),
        ({"dev_batches": {"x": []}}, "dev 'x'.*at least one batch"),
        ({"dev_batches": {"x": iter([1])}}, "dev 'x'.*list"),
        ({"mode": "test"}, "mode.*'test'"),
        ({"params": mlp().parameters()}, "params.*of the model"),
        ({"params": []}, "no trainable parameters in params"),
        ({"sketch": 0}, "buckets.*0"),
        ({"step_ahead": -1.0}, r"step_ahead.*-1\.0"),
        ({"loss": lambda m, b: m(b[0])}, r"scalar.*shape \(7, 3\).*dev 'x'"),
        ({"loss": lambda m, b: 1.5}, "scalar.*float.*dev 'x'"),
        ({"loss": lambda m, b: b[0].sum()}, "dev 'x' does not depend on any trainable parameter"),
    ],
)
def test_arguments_that_cannot_be_are_refused_by_name(change, message):
    arguments = {"loss": loss, "train_batches": batches(NAMES), "dev_batches": batches(DEV, seed=1), **change}
    with pytest.raises(ValueError, match=message):
        probe(mlp(), **arguments)
