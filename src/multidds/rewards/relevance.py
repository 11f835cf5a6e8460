"""The relevance of datasets to dev sets for a model as it is: the table of cosines of their gradients, in one call."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from .._base.text import short
from ..probes.probe_sources import ProbeSources
from ..probes.prober import Loss, Prober
from .estimator import Estimator
from .gradient_probes import GradientProbes
from .kinds import StabilizedCosine


class RelevanceTable(dict[str, dict[str, tuple[float, float]]]):
    """{dev set: {dataset: (cosine, standard error)}}; as a string, a table with the best dataset first."""

    def __str__(self) -> str:
        lines = []
        for dev, row in self.items():
            lines.append(f"{short(dev)}:")
            for name in sorted(row, key=lambda name: -row[name][0]):
                cosine, error = row[name]
                lines.append(f"  {short(name):24} {cosine:+.3f} ± {error:.3f}")
        return "\n".join(lines)


def relevance(
    model: nn.Module,
    loss: Loss,
    train: Mapping[str, Any],
    dev: Mapping[str, Any],
    *,
    batches: int = 8,
    mode: str = "eval",
    params: Iterable[Tensor] | None = None,
    seed: int = 0,
) -> RelevanceTable:
    """Measures which datasets help which dev sets, and leaves the model untouched.

    model: a trained model, or one in training; averaged weights say more than those of a single step.
    loss: (model, batch) -> mean loss of the batch, a scalar tensor.
    train, dev: {name: source of batches}, as for `Balancer`: a DataLoader, a list of batches, `batches_of(...)`.
    batches: of each dataset and dev set; more mean less noise. Default 8, at least 2.
    mode: "eval" or "train": whether dropout and similar layers are active. Default "eval".
    params: the parameters whose gradients count. Default None: all trainable ones.
    seed: for everything random in the passes. Default 0.

    Returns {dev set: {dataset: (cosine of their gradients, its standard error)}}: positive helps, 0 does nothing,
    negative harms. It costs n + K forward and backward passes per batch.
    """
    if batches < 2:
        raise ValueError(f"relevance: batches must be at least 2, for standard errors, but it is {batches}.")
    for word, given in (("train", train), ("dev", dev)):
        if not given:
            raise ValueError(f"relevance: {word} must have at least one set.")
    prober = Prober(model, loss, params, mode, seed, owner="relevance")
    sources = ProbeSources("relevance", {"train": train, "dev": dev}, seed)
    settings: dict[str, Any] = {"batches": batches, "total": None, "errors": True, "split_work": None}
    probes = GradientProbes(tuple(train), tuple(dev), prober, sources, StabilizedCosine(), **settings)
    found = Estimator(train, prober, sources, probes).estimate({})
    if found.trouble is not None:
        raise ValueError(f"relevance: {found.trouble}.")
    assert found.relevance is not None
    return RelevanceTable(found.relevance)
