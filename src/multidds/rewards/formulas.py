"""Formulas of rewards: pure functions of an `Alignment`.

A formula takes (alignment, weights) and returns a tensor [train]; `weights` [dev] are those of the dev sets, summing to
1 (None: equal). Section 3 (R) and section 4 (R', "stabilized") of the paper.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..probes.alignment import Alignment, divide_or_zero

Formula = Callable[[Alignment, Tensor], Tensor]


def multidds(alignment: Alignment, weights: Tensor | None = None) -> Tensor:
    """R_i = cos(sum_k w_k d_k, t_i): alignment with the gradient of the dev loss under the weights w (None: equal)."""
    w = _weights(alignment, weights)
    inner = w @ alignment.dev_train  # [train]
    squared = torch.einsum("k,...kl,l->...", w, alignment.dev_dev, w)  # |sum_k w_k d_k|^2: scalar, or [train]
    return divide_or_zero(inner, squared.clamp(min=0).sqrt() * alignment.train_norms)


def multidds_s(alignment: Alignment, weights: Tensor | None = None) -> Tensor:
    """R'_i = sum_k w_k cos(d_k, t_i): every dev set counts by its direction only, not by the size of its gradient.

    alignment: the table of a probe. weights: w, one per dev set, summing to 1; None: equal.
    """
    return _weights(alignment, weights) @ alignment.cosines()


def redraw_noise(first: Tensor, second: Tensor) -> Tensor:
    """The standard error of rewards [train] from those of the first and the second half of their probe.

    What all rewards have in common is left out: it moves no mixture. Half of the difference of two halves has the
    variance of their mean.
    """
    difference = first - second
    centred = difference - difference.mean()
    n = len(centred)
    return centred.abs() * (0.5 * math.sqrt(n / max(n - 1, 1)))


def _weights(alignment: Alignment, weights: Tensor | None) -> Tensor:
    if weights is None:
        return torch.full(
            (len(alignment.dev_names),), 1.0 / len(alignment.dev_names), dtype=torch.float64, device="cpu"
        )
    weights = torch.as_tensor(weights, dtype=torch.float64)
    if weights.shape != (len(alignment.dev_names),):
        raise ValueError(
            f"rewards: weights must be one number for each of the {len(alignment.dev_names)} dev sets, "
            f"but their shape is {tuple(weights.shape)}."
        )
    return weights
