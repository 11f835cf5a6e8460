"""What dev sets want small, as differentiable functions of the model: candidates for the dev side of a balancer.

"loss" is the cross entropy without label smoothing. "accuracy" and "soft-bleu" are minus the measures of validation.py,
freed of mere confidence: they are taken at the temperature that fits the batch, and how that temperature moves with
the parameters is part of the gradient. So multiplying all logits by a number changes neither value nor direction.
"expected-accuracy" is the measure as it stands: at averaged weights, where confidence is settled, it predicts best what
more of a dataset does to BLEU.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..batches.batch import Batch
from ..model import kernels
from ..model.transformer import Transformer
from .validation import ngram_sums

Objective = Callable[[Transformer, Sequence[Batch]], Tensor]
Measure = Callable[[Tensor, Tensor], Tensor]  # log-probabilities of correct tokens, their positions -> a scalar

_LARGEST = 20.0  # factor of the logits; 1 / _LARGEST is the smallest
_ROUNDS = 20  # of Newton's method, which mostly needs three


def loss(model: Transformer, parts: Sequence[Batch]) -> Tensor:
    """The mean cross entropy of the target tokens, without label smoothing. []"""
    hidden, target, _ = _rows(model, parts)
    return kernels.summed_cross_entropy(hidden, model.target_embedding.weight, target, 0.0) / len(target)


def accuracy(model: Transformer, parts: Sequence[Batch], temperature: float | None = None) -> Tensor:
    """Minus the expected accuracy: the mean probability of the correct token. []"""
    return _calibrated(_minus_expected_accuracy, model, parts, temperature)


def soft_bleu(model: Transformer, parts: Sequence[Batch], temperature: float | None = None) -> Tensor:
    """Minus the soft BLEU of the batch. []"""
    return _calibrated(_minus_soft_bleu, model, parts, temperature)


def expected_accuracy(model: Transformer, parts: Sequence[Batch]) -> Tensor:
    """The same with the probabilities as they are. []"""
    return accuracy(model, parts, temperature=1.0)


OBJECTIVES: dict[str, Objective] = {
    "loss": loss, "accuracy": accuracy, "soft-bleu": soft_bleu, "expected-accuracy": expected_accuracy,
}  # fmt: skip


def _minus_expected_accuracy(log_p: Tensor, positions: Tensor) -> Tensor:
    return -log_p.exp().mean()


def _minus_soft_bleu(log_p: Tensor, positions: Tensor) -> Tensor:
    counts = [int((positions >= n).sum()) for n in range(4)]  # of the n-grams that end there, n from 1
    means = [total / count for total, count in zip(ngram_sums(log_p, positions), counts, strict=True) if count]
    return -torch.stack(means).clamp_min(torch.finfo(log_p.dtype).tiny).log().mean().exp()


def _calibrated(measure: Measure, model: Transformer, parts: Sequence[Batch], temperature: float | None) -> Tensor:
    """A measure of the probabilities at a temperature: a given one, which is held fixed, or the one that fits best.

    The best one is where scaling the logits does not change the loss: G = d loss / d log scale = 0. With V the
    measure, dV/dθ in all is ∂V/∂θ - x ∂G/∂θ, where x = (∂V/∂ log scale) / (∂G/∂ log scale) is a number.
    """
    hidden, target, positions = _rows(model, parts)
    weight = model.target_embedding.weight
    scale = 1 / temperature if temperature is not None else fitted_scale(hidden, weight, target)
    log_p, entropy = kernels.token_log_p(hidden * scale, weight, target)
    value = measure(log_p, positions)
    slope = -(log_p + entropy).mean()  # G
    if temperature is not None or not 1 / _LARGEST < scale < _LARGEST:
        return value
    at = log_p.detach().requires_grad_()
    with torch.enable_grad():
        (by_log_p,) = torch.autograd.grad(measure(at, positions), at)
    by_scale = torch.dot(by_log_p, (log_p + entropy).detach())  # d log p[target] / d log scale is log p + entropy
    _, curvature = kernels.confidence_slope(hidden.detach() * scale, weight.detach(), target)
    exchange = by_scale / (curvature / len(target)).clamp_min(torch.finfo(log_p.dtype).tiny)
    return value - exchange * (slope - slope.detach())


def fitted_scale(hidden: Tensor, weight: Tensor, target: Tensor) -> float:
    """The factor of the logits (1 / temperature) with the lowest cross entropy, which is convex in it: by Newton."""
    hidden, weight = hidden.detach(), weight.detach()
    scale = 1.0
    for _ in range(_ROUNDS):
        first, second = (x.item() for x in kernels.confidence_slope(hidden * scale, weight, target))
        step = first / second if second > 0 else 0.0
        before, scale = scale, min(max(scale * min(max(1 - step, 0.5), 2.0), 1 / _LARGEST), _LARGEST)
        if abs(scale / before - 1) < 1e-5:
            break
    return scale


def _rows(model: Transformer, parts: Sequence[Batch]) -> tuple[Tensor, Tensor, Tensor]:
    """(hidden states [R, D], correct tokens [R], their positions [R]) of all parts."""
    device = model.target_embedding.weight.device
    moved = [part.to(device) for part in parts]
    hidden = torch.cat([model.hidden(part) for part in moved])
    targets = torch.cat([part.target_out for part in moved])
    return hidden, targets, torch.cat([part.target_rows.positions for part in moved])
