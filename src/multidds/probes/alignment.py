"""The table that a probe returns: inner products, norms and losses of n datasets and K dev sets.

Plain numbers, float64 on the CPU. `Prober` makes it, and rewards read it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Alignment:
    """How the gradients of the training datasets and of the dev sets relate to each other.

    train_names, dev_names: names of the n datasets and the K dev sets, in the order of the tensors.
    dev_train: [dev, train], the inner products d_k . t_i of dev and training gradients.
    dev_dev: [dev, dev], or [train, dev, dev] with step-ahead: d_k . d_l.
    train_norms: [train], |t_i|.
    train_losses, dev_losses: {name: loss of the probe}; with step-ahead dev losses are averaged over the datasets. A
        dataset whose gradient is a moving average has none.

    With step-ahead the dev gradients are taken at parameters that depend on the training dataset, so
    `dev_dev` and `dev_norms` have a training axis of their own.
    """

    train_names: tuple[str, ...]
    dev_names: tuple[str, ...]
    dev_train: Tensor  # [dev, train]: d_k . t_i
    dev_dev: Tensor  # [dev, dev], or [train, dev, dev]: d_k . d_l
    train_norms: Tensor  # [train]: |t_i|
    train_losses: dict[str, float]
    dev_losses: dict[str, float]

    @property
    def dev_norms(self) -> Tensor:
        """|d_k|: [dev], or [dev, train] with step-ahead."""
        squares = self.dev_dev.diagonal(dim1=-2, dim2=-1)  # [dev], or [train, dev]
        return squares.clamp(min=0).sqrt().T if squares.dim() == 2 else squares.clamp(min=0).sqrt()

    def cosines(self) -> Tensor:
        """cos(d_k, t_i) as [dev, train]; the cosine with a zero gradient is 0."""
        dev_norms = self.dev_norms if self.dev_norms.dim() == 2 else self.dev_norms[:, None]
        return divide_or_zero(self.dev_train, dev_norms * self.train_norms)


def divide_or_zero(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, and 0 where the denominator is 0."""
    zero = denominator == 0
    return torch.where(zero, 0.0, numerator / torch.where(zero, 1.0, denominator))
