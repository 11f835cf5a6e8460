"""Learn the mixture of many unequal datasets while one model trains on them (MultiDDS, Wang et al., ACL 2020).

The public names are resolved when they are first used: importing the package imports neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import rewards
    from .balancer.balancer import Balancer
    from .example_scorer.example_scorer import ExampleScorer, ExampleUpdate
    from .history.history import save_history
    from .history.plot import plot
    from .history.update import Update
    from .mixture.mixture import Mixture, Replay
    from .mixture.schedule import Schedule
    from .probes.alignment import Alignment
    from .probes.prober import probe
    from .rewards import priorities
    from .rules.anchored import Anchored
    from .rules.rivals import Exp3, Exponentiated
    from .rules.scorer import Scorer
    from .sampling.draws import Draws, Order
    from .sampling.interleave import MixtureSampler, interleave
    from .sampling.sources import batches_of

__version__ = "0.2.0"

__all__ = [
    "Alignment",
    "Anchored",
    "Balancer",
    "Draws",
    "ExampleScorer",
    "ExampleUpdate",
    "Exp3",
    "Exponentiated",
    "Mixture",
    "MixtureSampler",
    "Order",
    "Replay",
    "Schedule",
    "Scorer",
    "Update",
    "batches_of",
    "interleave",
    "plot",
    "priorities",
    "probe",
    "rewards",
    "save_history",
]

_HOMES = {
    "Alignment": "probes.alignment",
    "Anchored": "rules.anchored",
    "Balancer": "balancer.balancer",
    "Draws": "sampling.draws",
    "ExampleScorer": "example_scorer.example_scorer",
    "ExampleUpdate": "example_scorer.example_scorer",
    "Exp3": "rules.rivals",
    "Exponentiated": "rules.rivals",
    "Mixture": "mixture.mixture",
    "MixtureSampler": "sampling.interleave",
    "Order": "sampling.draws",
    "Replay": "mixture.mixture",
    "Schedule": "mixture.schedule",
    "Scorer": "rules.scorer",
    "Update": "history.update",
    "batches_of": "sampling.sources",
    "interleave": "sampling.interleave",
    "plot": "history.plot",
    "probe": "probes.prober",
    "save_history": "history.history",
    "priorities": "rewards",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _HOMES:  # a public module
        return import_module(f".{name}", __name__)
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
