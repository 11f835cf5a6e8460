"""The arithmetic of a training step where plain PyTorch is slow on a CPU: dropout, norm, attention, loss.

Each function is mathematically the plain expression that its docstring names, and is that expression on other devices
and where a compiler reads it. Gradients are written by hand, so that nothing is kept or passed over twice. What is
random comes from torch's default generator. Parameters and the order of operations are the model's.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

_LOGITS = 2**22  # of one chunk of the loss: 16 MB stay in the cache between its passes


def _by_hand(x: Tensor) -> bool:
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


# ---------------------------------------------------------------------------------------------- dropout


def keep_mask(like: Tensor, rate: float) -> Tensor:
    """Zeros at `rate` (rounded to 1 / 65536), elsewhere what keeps the mean: 1 / (1 - rate).

    16 random bits per element, four from one draw of the generator: `bernoulli_` takes about eight times as long.
    """
    dropped = round(rate * 65536)
    if dropped == 65536:
        return torch.zeros_like(like)
    words = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: like.numel()].view(like.shape)
    bits.ge_(dropped - 32768)  # in place it is vectorised; a comparison into a bool tensor is not
    return bits.to(like.dtype).mul_(65536 / (65536 - dropped))


def dropped(x: Tensor, rate: float) -> Tensor:
    """F.dropout(x, rate)"""
    if not rate or not _by_hand(x):
        return F.dropout(x, rate)
    return x * keep_mask(x, rate)


def add_dropped(x: Tensor, h: Tensor, rate: float) -> Tensor:
    """x + F.dropout(h, rate)"""
    if not rate or not _by_hand(x) or x.dtype != h.dtype:
        return x + F.dropout(h, rate)
    result: Tensor = _AddDropped.apply(x, h, rate)  # type: ignore[no-untyped-call]
    return result


class _AddDropped(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, h: Tensor, rate: float) -> Tensor:
        mask = keep_mask(h, rate)
        ctx.save_for_backward(mask)
        return torch.addcmul(x, h, mask)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (mask,) = ctx.saved_tensors
        return grad, grad * mask, None


def relu_dropped(x: Tensor, rate: float) -> Tensor:
    """F.dropout(F.relu(x), rate)"""
    if not rate or not _by_hand(x):
        return F.dropout(F.relu(x), rate)
    result: Tensor = _ReluDropped.apply(x, rate)  # type: ignore[no-untyped-call]
    return result


class _ReluDropped(Function):
    """Keeps only its result, which the next layer keeps anyway: that is positive exactly where a gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        result = keep_mask(x, rate).mul_(x).clamp_min_(0)
        ctx.save_for_backward(result)
        ctx.scale = 65536 / max(65536 - round(rate * 65536), 1)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (result,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(grad, result, 0).mul_(ctx.scale), None


# ---------------------------------------------------------------------------------------------- norm


def scale_norm(x: Tensor, g: Tensor, epsilon: float) -> Tensor:
    """g * x / sqrt(|x|^2 + D epsilon) over the last dimension"""
    if not _by_hand(x) or x.dtype != g.dtype:
        result: Tensor = F.rms_norm(x, x.shape[-1:], eps=epsilon) * (g / math.sqrt(x.shape[-1]))
    else:
        result = _ScaleNorm.apply(x, g, epsilon)  # type: ignore[no-untyped-call]
    return result


class _ScaleNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, g: Tensor, epsilon: float) -> Tensor:  # [..., D], []
        squared: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().add_(x.shape[-1] * epsilon)
        inverse = squared.rsqrt().add_(squared, alpha=0)  # [..., 1]; NaN where a square overflows, which 0 would hide
        ctx.save_for_backward(x, g, inverse)
        return x * (g * inverse)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, g, inverse = ctx.saved_tensors
        along = torch.mul(grad, x).sum(-1, keepdim=True).mul_(inverse)  # [..., 1]
        grad_x = (grad * (g * inverse)).addcmul_(x, along * inverse.square() * g, value=-1)
        return grad_x, along.sum(), None


# ---------------------------------------------------------------------------------------------- attention


def moved(rows: Tensor, index: Tensor, back: Tensor, holes: Tensor | None = None) -> Tensor:
    """rows[index], where index has every row at least once and `back` leads from each to one place of it.

    holes: rows that the index does not have; back leads from them anywhere, and they get no gradient.
    Gradients are gathered too. Those of an index_select would be added up row by row.
    """
    result: Tensor = _Moved.apply(rows, index, back, holes)  # type: ignore[no-untyped-call]
    return result


class _Moved(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, back: Tensor, holes: Tensor | None) -> Tensor:
        ctx.save_for_backward(back, holes)
        return rows.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        back, holes = ctx.saved_tensors
        moved = grad.index_select(0, back)
        return moved if holes is None else moved.index_fill_(0, holes, 0), None, None, None


def attend(first: Tensor, memory: Tensor | None, bias: Tensor, rate: float) -> Tensor:
    """F.dropout(softmax(q k' / sqrt(d) + bias), rate) v. first is [q, k, v], or [q] with memory [k, v].

    Shapes: q [B * H, T, d], k and v [B * H, S, d], bias broadcasts to [B * H, T, S]; the result is [B * H, T, d].
    """
    if not _by_hand(first) or first.dtype != bias.dtype:
        q, k, v = first if memory is None else (first[0], *memory)
        q, k, v, bias = (t[:, None] for t in (q, k, v, bias.to(q.dtype)))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=rate)[:, 0]
    result: Tensor = _Attend.apply(first, memory, bias, rate)  # type: ignore[no-untyped-call]
    return result


class _Attend(Function):
    @staticmethod
    def forward(ctx: Any, first: Tensor, memory: Tensor | None, bias: Tensor, rate: float) -> Tensor:
        q, k, v = first if memory is None else (first[0], *memory)
        p = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=q.shape[-1] ** -0.5).softmax(-1)  # [B * H, T, S]
        mask = keep_mask(p, rate) if rate else None
        ctx.save_for_backward(first, memory, p, mask)
        return torch.bmm(p if mask is None else p * mask, v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        first, memory, p, mask = ctx.saved_tensors
        q, k, v = first if memory is None else (first[0], *memory)
        grad_first, grad_memory = torch.empty_like(first), None if memory is None else torch.empty_like(memory)
        grad_q, grad_k, grad_v = grad_first if grad_memory is None else (grad_first[0], *grad_memory)
        grad_p = torch.bmm(grad, v.transpose(1, 2))
        if mask is not None:
            grad_p.mul_(mask)
        torch.bmm((p if mask is None else p * mask).transpose(1, 2), grad, out=grad_v)
        grad_p = torch._softmax_backward_data(grad_p, p, -1, p.dtype).mul_(q.shape[-1] ** -0.5)
        torch.bmm(grad_p, k, out=grad_q)
        torch.bmm(grad_p.transpose(1, 2), q, out=grad_k)
        return grad_first, grad_memory, None, None


# ---------------------------------------------------------------------------------------------- loss


def summed_cross_entropy(hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """F.cross_entropy(F.linear(hidden, weight).float(), target, label_smoothing=smoothing, reduction="sum")

    In chunks of rows, each with its gradients while its logits are there: they are never all in memory.
    Shapes: hidden [R, D], weight [V, D], target [R].
    """
    train = torch.is_grad_enabled()
    result: Tensor = _outside_autocast(_SummedCrossEntropy.apply, hidden, weight, target, smoothing, train)
    return result


class _SummedCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float, train: bool) -> Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        loss = hidden.new_zeros((), dtype=wide)
        grad_hidden = torch.empty_like(hidden) if train else None
        grad_weight = torch.zeros_like(weight, dtype=wide) if train else None
        words = weight.shape[0]
        for part, log_p in _chunks(hidden, weight):
            correct = target[part, None]
            loss -= (1 - smoothing) * log_p.gather(1, correct).sum()
            if smoothing:
                loss -= smoothing / words * log_p.sum()
            if grad_hidden is not None and grad_weight is not None:
                # d loss / d logits is p - smoothing / V, and 1 - smoothing less for the correct word.
                grad = log_p.exp_().sub_(smoothing / words)
                grad.scatter_add_(1, correct, grad.new_full((1, 1), smoothing - 1).expand_as(correct))
                _add_gradients(grad, hidden[part], weight, grad_hidden[part], grad_weight)
        ctx.save_for_backward(grad_hidden, grad_weight)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad.to(grad_hidden.dtype), (grad_weight * grad).to(grad_hidden.dtype), None, None, None


def token_scores(hidden: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the numbers of a validation, without gradients, from one pass over the logits in chunks of rows.

    (the summed cross entropy, as above without smoothing []; the log-probability of each correct token [R];
    whether it is the model's first choice [R]).
    """
    result: tuple[Tensor, Tensor, Tensor] = _outside_autocast(_token_scores, hidden, weight, target)
    return result


@torch.no_grad()
def _token_scores(hidden: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    correct_log_p = hidden.new_empty(hidden.shape[0], dtype=torch.promote_types(hidden.dtype, torch.float32))
    hits = torch.empty_like(target, dtype=torch.bool)
    loss = correct_log_p.new_zeros(())
    for part, log_p in _chunks(hidden, weight):
        found = log_p.gather(1, target[part, None])
        loss -= found.sum()
        correct_log_p[part] = found[:, 0]
        torch.eq(log_p.argmax(-1), target[part], out=hits[part])
    return loss, correct_log_p, hits


def token_losses(hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """F.cross_entropy(F.linear(hidden, weight).float(), target, label_smoothing=smoothing, reduction="none") [R]

    For losses that are weighted by what they are: logits are computed again for the gradients, in chunks of rows.
    """
    result: Tensor = _outside_autocast(_TokenLosses.apply, hidden, weight, target, smoothing)
    return result


class _TokenLosses(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float) -> Tensor:
        losses = hidden.new_empty(hidden.shape[0], dtype=torch.promote_types(hidden.dtype, torch.float32))
        for part, log_p in _chunks(hidden, weight):
            losses[part] = (smoothing - 1) * log_p.gather(1, target[part, None])[:, 0]
            if smoothing:
                losses[part] -= smoothing * log_p.mean(-1)
        ctx.save_for_backward(hidden, weight, target)
        ctx.smoothing = smoothing
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden, weight, target = ctx.saved_tensors
        grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=grads.dtype)
        for part, log_p in _chunks(hidden, weight):
            correct = target[part, None]
            grad = log_p.exp_().sub_(ctx.smoothing / weight.shape[0])
            grad.scatter_add_(1, correct, grad.new_full((1, 1), ctx.smoothing - 1).expand_as(correct))
            _add_gradients(grad.mul_(grads[part, None]), hidden[part], weight, grad_hidden[part], grad_weight)
        return grad_hidden, grad_weight.to(weight.dtype), None, None


def _outside_autocast(function: Callable[..., Any], hidden: Tensor, weight: Tensor, *rest: Any) -> Any:
    """Under autocast matrix products are in its type and everything else is not, which functions here do themselves."""
    device = hidden.device.type
    if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
        return function(hidden, weight, *rest)
    narrow = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        return function(hidden.to(narrow), weight.to(narrow), *rest)


def _chunks(hidden: Tensor, weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """(rows, log_softmax of their logits), which the next chunk may overwrite and the caller too."""
    rows, words = hidden.shape[0], weight.shape[0]
    wide = torch.promote_types(hidden.dtype, torch.float32)
    size = max(1, min(rows, _LOGITS // words))
    buffer = hidden.new_empty(size, words)
    for start in range(0, rows, size):
        part = slice(start, min(start + size, rows))
        logits = torch.mm(hidden[part], weight.t(), out=buffer[: part.stop - start]).to(wide)
        yield part, torch.log_softmax(logits, -1, out=logits)


def _add_gradients(grad: Tensor, hidden: Tensor, weight: Tensor, grad_hidden: Tensor, grad_weight: Tensor) -> None:
    """From the gradient of the logits of some rows, those of the rows (written) and of the weight (added)."""
    grad = grad.to(hidden.dtype)
    torch.mm(grad, weight, out=grad_hidden)
    if grad_weight.dtype == hidden.dtype:
        grad_weight.addmm_(grad.t(), hidden)
    else:
        grad_weight += grad.t() @ hidden
