"""The paper as naively as it can be written: Algorithm 1, MultiDDS-S and the moving average of DDS.

Nothing of the package is used here. A gradient is one flat vector, every pair of a dataset and a dev set is a loop, and
a step ahead copies the model. Read it next to `docs/method.md`; the tests compare the fast code with it.

>>> psi = {"az": math.log(0.2), "tr": math.log(0.8)}
>>> moved = softmax(scorer_step(psi, {"az": 0.5, "tr": 0.1}, lr=1.0))
>>> round(moved["az"], 3)
0.348
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Batches: TypeAlias = Mapping[str, Sequence[Any]]  # {name: [batch, ...]}
Weights: TypeAlias = Mapping[str, float]
Loss: TypeAlias = Callable[[Any, Any], Tensor]  # (model, batch) -> mean loss of the batch


def update(
    psi: Weights,
    model: nn.Module,
    loss: Loss,
    train: Batches,
    dev: Batches,
    lr: float,
    kind: str = "regular",
    stabilized: bool = True,
    step_ahead: float | None = None,
) -> dict[str, float]:
    """Returns the logits of the mixture after one update: the second half of Algorithm 1. Its softmax is P."""
    weights = priority(kind, model, loss, dev)
    return scorer_step(psi, rewards(model, loss, train, dev, weights, stabilized, step_ahead), lr)


def rewards(
    model: nn.Module,
    loss: Loss,
    train: Batches,
    dev: Batches,
    weights: Weights,
    stabilized: bool,
    step_ahead: float | None = None,
    averages: Mapping[str, Tensor] | None = None,
) -> dict[str, float]:
    """Returns {dataset: reward}.

    stabilized: True: MultiDDS-S, the weighted mean of cosines. False: MultiDDS, the cosine with the weighted sum.
    step_ahead: the size of the step of plain gradient descent along the dataset's gradient, at whose end the gradients
        of the dev sets are taken. None: they are taken at the present parameters.
    averages: {dataset: moving average of its gradients in training}, instead of fresh gradients.
    """
    result = {}
    for i, train_batches in train.items():
        g_train = averages[i] if averages else gradient(model, loss, train_batches)
        here = model if step_ahead is None else stepped(model, g_train, step_ahead)
        g_dev = {k: gradient(here, loss, batches) for k, batches in dev.items()}
        if stabilized:
            result[i] = sum(weights[k] * cosine(g_dev[k], g_train) for k in dev)
        else:
            result[i] = cosine(torch.stack([weights[k] * g_dev[k] for k in dev]).sum(0), g_train)
    return result


def gradient(model: nn.Module, loss: Loss, batches: Sequence[Any]) -> Tensor:
    """Returns the gradient of the mean over batches of the batch losses, as one flat vector."""
    params = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in params), dtype=torch.float64)
    for batch in batches:
        total += _flat(torch.autograd.grad(loss(model, batch), params, allow_unused=True), params) / len(batches)
    return total


def cosine(a: Tensor, b: Tensor) -> float:
    lengths = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    return float(a @ b) / lengths if lengths > 0 else 0.0


def stepped(model: nn.Module, direction: Tensor, step: float) -> nn.Module:
    """Returns a copy of the model, one step of plain gradient descent further."""
    moved = copy.deepcopy(model)
    start = 0
    with torch.no_grad():
        for p in [p for p in moved.parameters() if p.requires_grad]:
            p.sub_(step * direction[start : start + p.numel()].view_as(p).to(p.dtype))
            start += p.numel()
    return moved


def priority(kind: str, model: nn.Module, loss: Loss, dev: Batches) -> dict[str, float]:
    """Returns {dev set: weight}: all ("regular"), or the half with the worst ("low") or the best ("high") loss."""
    if kind == "regular":
        return {k: 1 / len(dev) for k in dev}
    losses = {k: sum(loss(model, b).item() for b in batches) / len(batches) for k, batches in dev.items()}
    ranked = sorted(losses, key=lambda k: (-losses[k] if kind == "low" else losses[k], k))
    chosen = ranked[: math.ceil(len(dev) / 2)]
    return {k: 1 / len(chosen) if k in chosen else 0.0 for k in dev}


def moving_average(average: Tensor | None, new: Tensor, decay: float = 0.9) -> Tensor:
    """Returns the moving average of a dataset's gradients in training (DDS, appendix A.1)."""
    return new if average is None else decay * average + (1 - decay) * new


def scorer_step(psi: Weights, reward: Weights, lr: float, weighted_by_p: bool = False) -> dict[str, float]:
    """Returns psi + lr * sum_i R_i grad log P(i), with d log P(i) / d psi_j = [i = j] - P(j).

    weighted_by_p: True: each term times P(i), which is the policy gradient of the expected reward.
    """
    p = softmax(psi)
    new = dict(psi)
    for i in psi:
        for j in psi:
            new[j] += lr * reward[i] * (p[i] if weighted_by_p else 1.0) * ((i == j) - p[j])
    return new


def softmax(psi: Weights) -> dict[str, float]:
    top = max(psi.values())
    exp = {i: math.exp(x - top) for i, x in psi.items()}
    return {i: e / sum(exp.values()) for i, e in exp.items()}


def example_rewards(model: nn.Module, losses: Loss, batch: Any, direction: Tensor) -> list[float]:
    """Returns <gradient of an example's loss, direction> / |direction|, with one backward pass per example."""
    params = [p for p in model.parameters() if p.requires_grad]
    result = []
    for i in range(len(losses(model, batch))):
        own = _flat(torch.autograd.grad(losses(model, batch)[i], params, allow_unused=True), params)
        result.append(float(own @ direction) / math.sqrt(float(direction @ direction)))
    return result


def example_scorer_step(network: nn.Module, batch: Any, rewards: Sequence[float], lr: float) -> None:
    """Moves a network in place: psi + lr * mean_i R_i grad log P(x_i, y_i; psi), with P the softmax over the batch."""
    total = [torch.zeros_like(p) for p in network.parameters()]
    for i, reward in enumerate(rewards):
        log_p = torch.log_softmax(network(batch), dim=0)[i]
        for t, g in zip(total, torch.autograd.grad(log_p, list(network.parameters())), strict=True):
            t += reward * g / len(rewards)
    with torch.no_grad():
        for p, t in zip(network.parameters(), total, strict=True):
            p.add_(lr * t)


def _flat(grads: Sequence[Tensor | None], params: Sequence[Tensor]) -> Tensor:
    flat = [torch.zeros_like(p) if g is None else g for p, g in zip(params, grads, strict=True)]
    return torch.cat([g.reshape(-1).double() for g in flat])
