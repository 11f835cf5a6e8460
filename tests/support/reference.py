"""Algorithm 1, MultiDDS-S and DDS's moving average, written as naively as the paper allows.

Nothing of the package is used here. Gradients are whole flat vectors, every pair is a loop, step-ahead copies
the model. The tests compare the fast code with this.
"""

import copy
import math

import torch


def gradient(model, loss, batches):
    """The gradient of the mean over batches of the batch means, as one flat vector."""
    params = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in params), dtype=torch.float64)
    for batch in batches:
        grads = torch.autograd.grad(loss(model, batch), params, allow_unused=True)
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(params, grads, strict=True)]
        total += torch.cat([g.reshape(-1).double() for g in flat]) / len(batches)
    return total


def cosine(a, b):
    lengths = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    return float(a @ b) / lengths if lengths > 0 else 0.0


def stepped(model, direction, step):
    """A copy of the model, one step of plain gradient descent further."""
    moved = copy.deepcopy(model)
    start = 0
    with torch.no_grad():
        for p in [p for p in moved.parameters() if p.requires_grad]:
            p -= step * direction[start : start + p.numel()].view_as(p).to(p.dtype)
            start += p.numel()
    return moved


def rewards(model, loss, train, dev, weights, stabilized, step_ahead=None, averages=None):
    """{dataset: reward}. train, dev: {name: [batch, ...]}; averages: {name: gradient} instead of fresh ones."""
    result = {}
    for i, train_batches in train.items():
        g_train = averages[i] if averages else gradient(model, loss, train_batches)
        here = model if step_ahead is None else stepped(model, g_train, step_ahead)
        g_dev = {k: gradient(here, loss, batches) for k, batches in dev.items()}
        if stabilized:
            result[i] = sum(weights[k] * cosine(g_dev[k], g_train) for k in dev)
        else:
            result[i] = cosine(sum(weights[k] * g_dev[k] for k in dev), g_train)
    return result


def priority(kind, model, loss, dev):
    """{dev set: weight}: regular, or the half with the worst or the best dev loss (model without dropout)."""
    if kind == "regular":
        return {k: 1 / len(dev) for k in dev}
    losses = {k: sum(loss(model, b).item() for b in batches) / len(batches) for k, batches in dev.items()}
    ranked = sorted(losses, key=lambda k: (-losses[k] if kind == "low" else losses[k], k))
    chosen = ranked[: math.ceil(len(dev) / 2)]
    return {k: 1 / len(chosen) if k in chosen else 0.0 for k in dev}


def softmax(psi):
    top = max(psi.values())
    exp = {i: math.exp(x - top) for i, x in psi.items()}
    return {i: e / sum(exp.values()) for i, e in exp.items()}


def scorer_step(psi, reward, lr, weighted_by_p=False):
    """psi + lr * sum_i R_i grad log P(i), where d log P(i) / d psi_j = [i = j] - P(j); or each term times P(i)."""
    p = softmax(psi)
    new = dict(psi)
    for i in psi:
        for j in psi:
            new[j] += lr * reward[i] * (p[i] if weighted_by_p else 1.0) * ((i == j) - p[j])
    return new


def example_rewards(model, losses, batch, direction):
    """<grad of example i's loss, direction> / |direction|, one backward pass per example."""
    params = [p for p in model.parameters() if p.requires_grad]
    result = []
    for i in range(len(losses(model, batch))):
        grads = torch.autograd.grad(losses(model, batch)[i], params, allow_unused=True)
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(params, grads, strict=True)]
        gradient_i = torch.cat([g.reshape(-1).double() for g in flat])
        result.append(float(gradient_i @ direction) / math.sqrt(float(direction @ direction)))
    return result


def example_scorer_step(network, batch, rewards, lr):
    """psi + lr * mean_i R_i grad log P(x_i, y_i; psi), P the softmax over the batch; moves the network in place."""
    total = [torch.zeros_like(p) for p in network.parameters()]
    for i, reward in enumerate(rewards):
        scores = network(batch)
        log_p = scores[i] - torch.log(sum(torch.exp(score) for score in scores))
        for t, g in zip(total, torch.autograd.grad(log_p, list(network.parameters())), strict=True):
            t += reward * g / len(rewards)
    with torch.no_grad():
        for p, t in zip(network.parameters(), total, strict=True):
            p += lr * t
