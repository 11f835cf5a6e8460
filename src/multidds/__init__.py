"""Learn the mixture of many unequal datasets while one model trains on them (MultiDDS, Wang et al., ACL 2020).

The public names are resolved when they are first used: importing the package imports neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import priorities, rewards
    from .alignment import Alignment
    from .anchored import Anchored
    from .balancer import Balancer
    from .draws import Draws, Order
    from .example_scorer import ExampleScorer, ExampleUpdate
    from .history import save_history
    from .mixture import Mixture, Replay
    from .plotting import plot
    from .probing import probe
    from .rivals import Exp3, Exponentiated
    from .sampling import MixtureSampler, interleave
    from .schedule import Schedule
    from .scorer import Scorer
    from .sources import batches_of
    from .update import Update

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
    "Alignment": "alignment",
    "Anchored": "anchored",
    "Balancer": "balancer",
    "Draws": "draws",
    "ExampleScorer": "example_scorer",
    "ExampleUpdate": "example_scorer",
    "Exp3": "rivals",
    "Exponentiated": "rivals",
    "Mixture": "mixture",
    "MixtureSampler": "sampling",
    "Order": "draws",
    "Replay": "mixture",
    "Schedule": "schedule",
    "Scorer": "scorer",
    "Update": "update",
    "batches_of": "sources",
    "interleave": "sampling",
    "plot": "plotting",
    "probe": "probing",
    "save_history": "history",
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
