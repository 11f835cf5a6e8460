"""Each kernel against the plain expression that its docstring names. Masks are read off by running "
"under one seed."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.autograd import gradcheck

from multidds.nmt.model import kernels
from multidds.nmt.model.freed_memory import SWITCH, keep_freed_memory


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def seeded(function):
    """The same random numbers at every call, as finite differences need them."""

    def call(*args):
        torch.manual_seed(7)
        return function(*args)

    return call


# ---------------------------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.999])
def test_a_mask_drops_at_its_rate_and_keeps_the_mean(rate):
    torch.manual_seed(0)
    mask = kernels.keep_mask(torch.empty(1000, 2003), rate)
    keep = (mask != 0).double()
    error = (rate * (1 - rate) / mask.numel()) ** 0.5
    assert keep.mean().item() == pytest.approx(1 - rate, abs=4 * error)
    values = mask.unique()
    assert values.tolist() == pytest.approx([0, 1 / (1 - rate)], rel=1e-2)
    assert ((1 - round(rate * 65536) / 65536) * values[1].item()) == pytest.approx(1, rel=1e-6)  # the mean is exact
    # No row and no column is favoured: the four numbers of one draw are as good as each other.
    for dim in (0, 1):
        n = mask.shape[dim]
        spread = (keep.mean(dim) - (1 - rate)).abs().max().item()
        assert spread < 6 * (rate * (1 - rate) / n) ** 0.5 + 2 / n


def test_neighbours_and_calls_are_independent():
    torch.manual_seed(0)
    first, second = (kernels.keep_mask(torch.empty(2**20), 0.3).ne(0).double() - 0.7 for _ in range(2))
    limit = 4 * 0.3 * 0.7 / 2**10
    assert abs((first * second).mean().item()) < limit
    for distance in (1, 2, 3, 4, 5, 8, 256, 624, 1248):  # 624 words are the generator's period of renewal
        assert abs((first[distance:] * first[:-distance]).mean().item()) < limit


def test_a_mask_is_a_function_of_torchs_generator_and_moves_it_on():
    like = torch.empty(5, 7)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first, second = kernels.keep_mask(like, 0.5), kernels.keep_mask(like, 0.5)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(first, kernels.keep_mask(like, 0.5))
    assert torch.equal(second, kernels.keep_mask(like, 0.5))


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5])
@pytest.mark.parametrize("rate", [0.0, 1e-6, 0.3, 1.0])
def test_masks_of_any_size_and_rate(size, rate):
    mask = kernels.keep_mask(torch.empty(size, dtype=torch.float64), rate)
    assert mask.shape == (size,)
    assert mask.dtype == torch.float64
    if rate in (0.0, 1e-6, 1.0):
        assert mask.tolist() == [1.0 if rate < 1 else 0.0] * size


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_dropped_sums_and_rectifiers_are_the_plain_ones(rate):
    torch.manual_seed(0)
    x, h = leaf(9, 6), leaf(9, 6)
    mask = seeded(kernels.keep_mask)(h, rate)
    for fast, plain in (
        (lambda: kernels.dropped(h, rate), lambda: h * mask),
        (lambda: kernels.add_dropped(x, h, rate), lambda: x + h * mask),
        (lambda: kernels.relu_dropped(h, rate), lambda: F.relu(h) * mask),
    ):
        found, expected = seeded(fast)(), plain()
        assert torch.allclose(found, expected, atol=1e-12)
        upstream = torch.randn_like(found)
        inputs = [
            t
            for t in (x, h)
            if torch.autograd.grad(expected.sum(), t, retain_graph=True, allow_unused=True)[0] is not None
        ]
        ours = torch.autograd.grad(found, inputs, upstream)
        theirs = torch.autograd.grad(expected, inputs, upstream)
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(ours, theirs, strict=True))


# ---------------------------------------------------------------------------------------------- norm, attention


def test_scale_norm_is_the_formula_with_its_gradients():
    torch.manual_seed(0)
    x, g = leaf(5, 6), torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    expected = g * x / (x.square().sum(-1, keepdim=True) + 6 * 1e-2).sqrt()
    assert torch.allclose(kernels.scale_norm(x, g, 1e-2), expected)
    assert gradcheck(lambda x, g: kernels.scale_norm(x, g, 1e-2), (x, g))
    assert torch.equal(kernels.scale_norm(torch.zeros(2, 4), torch.tensor(2.0), 1e-6), torch.zeros(2, 4))
    assert kernels.scale_norm(torch.full((1, 4), 1e30), torch.tensor(2.0), 1e-6).isnan().all()  # not a silent zero


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("cross", [False, True])
def test_attention_is_the_formula_with_its_gradients(rate, cross):
    torch.manual_seed(0)
    first = leaf(1, 4, 3, 2) if cross else leaf(3, 4, 3, 2)
    memory = leaf(2, 4, 5, 2) if cross else None
    bias = torch.zeros(4, 1, 5 if cross else 3, dtype=torch.float64)
    bias[1, 0, 2:] = -torch.inf
    q, k, v = (first[0], *memory) if cross else first
    p = (q @ k.transpose(1, 2) / 2**0.5 + bias).softmax(-1)
    mask = seeded(kernels.keep_mask)(p, rate)
    function = seeded(lambda first, memory=None: kernels.attend(first, memory, bias, rate))
    inputs = (first, memory) if cross else (first,)
    assert torch.allclose(function(*inputs), (p * mask) @ v)
    assert gradcheck(function, inputs)


def test_moved_rows_come_back_with_their_gradients():
    rows = leaf(4, 3)
    index, back = torch.tensor([2, 0, 0, 1, 0, 3]), torch.tensor([1, 3, 0, 5])  # spread: two places hold anything
    spread = kernels.moved(rows, index, back)
    assert torch.equal(spread[back], rows)
    assert torch.equal(torch.autograd.grad(spread, rows, upstream := torch.randn_like(spread))[0], upstream[back])
    padded = leaf(6, 3)
    collected = kernels.moved(padded, back, index, torch.tensor([2, 4]))
    assert torch.equal(collected, padded[back])
    upstream = torch.randn_like(collected)
    expected = torch.zeros_like(padded).index_copy(0, back, upstream)
    assert torch.equal(torch.autograd.grad(collected, padded, upstream)[0], expected)


# ---------------------------------------------------------------------------------------------- loss


@pytest.mark.parametrize("chunk", [1, 3, 7, 2**22])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_the_loss_in_chunks_is_the_loss(monkeypatch, chunk, smoothing):
    monkeypatch.setattr(kernels, "_LOGITS", 5 * chunk)  # a vocabulary of 5
    torch.manual_seed(0)
    hidden, weight, target = leaf(8, 3), leaf(5, 3), torch.randint(0, 5, (8,))
    plain = F.cross_entropy(hidden @ weight.T, target, label_smoothing=smoothing, reduction="sum")
    ours = kernels.summed_cross_entropy(hidden, weight, target, smoothing)
    assert ours.item() == pytest.approx(plain.item())
    assert gradcheck(lambda h, w: kernels.summed_cross_entropy(h, w, target, smoothing), (hidden, weight))


def test_the_loss_may_be_scaled_kept_and_added_up():
    """As a step, a probe and a validation use it: any factor, backward twice, a weight that is used "
    "elsewhere too."""
    torch.manual_seed(0)
    hidden, weight, target = leaf(8, 3), leaf(5, 3), torch.randint(0, 5, (8,))
    expected = torch.autograd.grad(
        F.cross_entropy(hidden @ weight.T, target, reduction="sum") * -0.2 + weight.square().sum(), (hidden, weight)
    )
    loss = kernels.summed_cross_entropy(hidden, weight, target, 0.0) * -0.2 + weight.square().sum()
    for _ in range(2):
        found = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
        assert all(torch.allclose(a, b) for a, b in zip(found, expected, strict=True))
    with torch.no_grad():
        alone = kernels.summed_cross_entropy(hidden, weight, target, 0.0)
    assert not alone.requires_grad
    with pytest.raises(RuntimeError, match="once_differentiable"):
        torch.autograd.grad(loss.square(), hidden, create_graph=True)[0].sum().backward()


def test_a_large_logit_does_not_overflow():
    hidden, weight = torch.tensor([[1000.0]], requires_grad=True), torch.tensor([[1.0], [-1.0]], requires_grad=True)
    loss = kernels.summed_cross_entropy(hidden, weight, torch.tensor([1]), 0.0)
    loss.backward()
    assert loss.item() == 2000
    assert hidden.grad.item() == 2


# ---------------------------------------------------------------------------------------------- memory


def test_freed_memory_is_kept_only_where_nobody_objects(monkeypatch):
    monkeypatch.setenv(SWITCH, "0")
    assert not keep_freed_memory()
    monkeypatch.delenv(SWITCH)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1")
    assert not keep_freed_memory()
    monkeypatch.delenv("GLIBC_TUNABLES")
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    assert not keep_freed_memory()


@pytest.mark.parametrize("chunk", [1, 3, 7, 2**22])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_the_losses_of_tokens_are_those_of_plain_torch(monkeypatch, chunk, smoothing):
    monkeypatch.setattr(kernels, "_LOGITS", 5 * chunk)  # a vocabulary of 5
    torch.manual_seed(0)
    hidden, weight, target = leaf(8, 3), leaf(5, 3), torch.randint(0, 5, (8,))
    plain = F.cross_entropy(hidden @ weight.T, target, label_smoothing=smoothing, reduction="none")
    assert kernels.token_losses(hidden, weight, target, smoothing).tolist() == pytest.approx(plain.tolist())
    assert gradcheck(lambda h, w: kernels.token_losses(h, w, target, smoothing), (hidden, weight))
