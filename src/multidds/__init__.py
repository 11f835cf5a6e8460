"""Learns the mixture of many unequal datasets while one model trains on them (MultiDDS, Wang et al., ACL 2020).

The packages, in the order of the story, and the types that flow through them:

    Mixture      {dataset: probability}                        mixture/
      Draws      position -> (dataset, its n-th example)       sampling/       what training sees
    Probe        gradients of datasets and dev sets            probes/         leaves no trace
      Table      [dev, train] cosines with their errors
      Rule       asks the probe, moves the probabilities       rules/
      Update     what changed and why                          history/
    Balancer     does the last four every M steps              balancer/
    ExampleScorer  the same idea for single examples           example_scorer/

`gradients/` has their algebra and layout, `_base/` the ground floor; `integrations/` has the Hugging Face Trainer, TRL,
sentence-transformers and Lightning; `report/` makes a page from runs, `commands/` has the command line; `nmt/` is the
translation application.

>>> from multidds import Mixture
>>> mixture = Mixture.temperature({"az": 1, "tr": 9}, tau=2)
>>> mixture["az"]
0.25

Public names are resolved when they are first used: importing the package imports neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .balancer import Balancer, Budget
    from .example_scorer import ExampleScorer
    from .history import Update, plot
    from .mixture import Limits, Mixture
    from .probes import Probes, relevance
    from .sampling import MixtureSampler, batches_of, interleave

__version__ = "0.3.0"

__all__ = [
    "Balancer",
    "Budget",
    "ExampleScorer",
    "Limits",
    "Mixture",
    "MixtureSampler",
    "Probes",
    "Update",
    "batches_of",
    "interleave",
    "plot",
    "relevance",
]

_HOMES = {
    "Balancer": "balancer",
    "Budget": "balancer",
    "ExampleScorer": "example_scorer",
    "Limits": "mixture",
    "Mixture": "mixture",
    "MixtureSampler": "sampling",
    "Probes": "probes",
    "Update": "history",
    "batches_of": "sampling",
    "interleave": "sampling",
    "plot": "history",
    "relevance": "probes",
}
_PACKAGES = {"history", "mixture", "probes", "rules", "sampling"}  # public, for all other names


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, *_PACKAGES])
