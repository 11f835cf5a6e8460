"""The relevance of datasets to dev sets for a model as it is: the table of cosines of their gradients, in one call."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from ..sampling.sources import named_dev_sets
from .probe import NotFiniteError, Probe
from .probed_model import Loss, ProbedModel
from .probes import Probes
from .round import Round
from .table import Table

_MOST_PARTS = 8  # of a probe that are compared: each has a sketch of every gradient


def relevance(
    model: nn.Module,
    loss: Loss,
    train: Mapping[str, Any],
    dev: Any,
    *,
    batches: int = 8,
    mode: str = "eval",
    params: Iterable[Tensor] | None = None,
    seed: int = 0,
) -> Table:
    """Measures which datasets help which dev sets, and leaves the model untouched.

    model: a trained model, or one in training; averaged weights say more than those of a single step.
    loss: (model, batch) -> mean loss of the batch, a scalar tensor.
    train, dev: {name: source of batches}, as for `Balancer`: a DataLoader, a list of batches, `batches_of(...)`. A
        single source of dev batches is called "dev".
    batches: of each dataset and dev set; more mean less noise. Default 8, at least 2.
    mode: "eval" or "train": whether dropout and similar layers are active. Default "eval".
    params: the parameters whose gradients count. Default None: all trainable ones.
    seed: for everything random in the passes. Default 0.

    Returns the table {dev set: {dataset: (cosine of their gradients, its standard error)}}: positive helps, 0 does
    nothing, negative harms. It costs n + K forward and backward passes per batch.
    """
    if batches < 2:
        raise ValueError(f"relevance: batches must be at least 2, for standard errors, but it is {batches}.")
    dev = named_dev_sets("relevance", dev)
    for word, given in (("train", train), ("dev", dev)):
        if not given:
            raise ValueError(f"relevance: {word} must have at least one set.")
    probed = ProbedModel(model, loss, params, mode, seed, owner="relevance")
    probe = Probe("relevance", probed, {"train": train, "dev": dev}, Probes(batches=batches))
    probe.divide(_MOST_PARTS)
    try:
        with probe.open():
            weights = probe.dev_weights()
            return probe.table(Round(0, 0, tuple(train), weights, weights))
    except NotFiniteError as error:
        raise ValueError(f"relevance: {error}.") from None
