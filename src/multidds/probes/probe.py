"""All gradients of datasets and dev sets at once, as a table."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from .._base.ranks import Ranks
from .alignment import Alignment
from .alignment_table import Table, sketcher_of
from .collectors import Losses
from .prober import Loss, Prober
from .sweep import Taken, sweep


def probe(
    model: nn.Module,
    loss: Loss,
    train_batches: Mapping[str, Sequence[Any]],
    dev_batches: Mapping[str, Sequence[Any]],
    step_ahead: float | None = None,
    sketch: int | str | None = None,
    *,
    mode: str = "train",
    params: Iterable[Tensor] | None = None,
    seed: int = 0,
) -> Alignment:
    """The whole table of inner products between datasets and dev sets, at the current parameters.

    model, loss: loss(model, batch) is the mean loss of a batch, a scalar tensor.
    train_batches, dev_batches: {name: [batch, ...]}; a gradient is that of the mean loss over the batches of a name.
    step_ahead: a step size, for dev gradients one step of gradient descent ahead on each dataset; None: no step.
    sketch: None: exact, with K + 1 gradients in memory; or a number of buckets (2**16: cosines to 0.004).
    mode: "train" or "eval": whether dropout and similar layers are active.
    params: the parameters whose gradients count; by default all trainable ones.
    seed: for everything random in the passes.

    It costs n + K forward and backward passes per batch (n + n * K with step-ahead) and leaves no trace in the model.
    Under torch.distributed every rank brings the same number of batches, and gradients are averaged over ranks. A model
    sharded by fully_shard (FSDP2) stays sharded: every rank holds its shards of the gradients.
    """
    if step_ahead is not None and not (step_ahead > 0 and math.isfinite(step_ahead)):
        raise ValueError(f"probe: step_ahead must be a positive step size, but it is {step_ahead}.")
    prober = Prober(model, loss, params, mode, seed, owner="probe")
    if step_ahead is not None:
        prober.refuse_narrow_steps()
    _check_batches({"train": train_batches, "dev": dev_batches}, prober.replicas)
    table = Table(prober.params, prober.names, prober.layout, sketcher_of(sketch), step_ahead is not None)
    losses = Losses(probes=1 if step_ahead is None else len(train_batches))

    def taken(role: str, sets: Mapping[str, Sequence[Any]]) -> dict[str, Taken]:
        totals = {name: len(batches) * prober.replicas.size for name, batches in sets.items()}
        numbered = {name: list(zip(prober.numbers(totals[name]), sets[name], strict=True)) for name in sets}
        return {name: partial(prober.gradient, (role, name, 0), numbered[name], totals[name]) for name in sets}

    with prober.invisible():
        ahead = None if step_ahead is None else partial(prober.moved, step=step_ahead)
        dev, train = taken("dev", dev_batches), taken("train", train_batches)
        sweep(dev, train, [losses, table], layout=prober.layout, ahead=ahead)
    return table.alignment(losses, list(train_batches))


def _check_batches(given: Mapping[str, Mapping[str, Sequence[Any]]], replicas: Ranks) -> None:
    with replicas.raise_on_all_ranks():
        for role, sets in given.items():
            if not sets:
                raise ValueError(f"probe: {role}_batches is empty.")
            for name, batches in sets.items():
                if not isinstance(batches, Sequence) or not batches:
                    raise ValueError(f"probe: {role} {name!r} must be a list with at least one batch.")
    counts = [(role, name, len(batches)) for role, sets in given.items() for name, batches in sets.items()]
    if any(other != counts for other in replicas.gather(counts)):
        raise ValueError("probe: the ranks have different names, or other numbers of batches.")
