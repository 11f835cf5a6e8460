"""Dev sets with their weights and the batches that an update draws of them."""

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from .._base.state import check_keys
from ..gradients.vectors import Gradient
from ..probes.probe_sources import ProbeSources
from ..probes.prober import Numbered, Prober
from .dev_weights import DevWeights
from .priorities import Priority


class DevBatches:
    """Named dev sets: sources of batches, the priority, and the losses by which it ranks them.

    owner: the class that errors name.
    prober: takes gradients and losses of batches.
    sources: of probe batches; the dev sets are those of the role "dev".
    priority: how much each dev set counts; may be assigned later as `weights.priority`.
    """

    def __init__(self, owner: str, prober: Prober, sources: ProbeSources, priority: Priority = "regular") -> None:
        self.names = sources.names("dev")
        if not self.names:
            raise ValueError(f"{owner}: there must be at least one dev set.")
        self._owner = owner
        self._prober = prober
        self._sources = sources
        self.weights = DevWeights(owner, self.names)
        self.weights.priority = priority

    def draw(self, update: int, total: int, keep: bool = False) -> "DrawnDevBatches":
        """Returns the batches of an update.

        update: its number, which seeds the draws and the passes.
        total: batches of each dev set, over all ranks.
        keep: True draws all batches now, to use them more than once. Otherwise the batches of a dev set are drawn when
            its gradient is taken.
        """
        drawn = DrawnDevBatches(self._prober, self._sources, update, total)
        if keep:
            drawn.keep(self.names)
        return drawn

    def check_ranks(self, values: Mapping[str, Any]) -> None:
        """Raises a ValueError if ranks have other dev sets, other priorities, or others of the {what: value} given."""
        first, *others = self._prober.replicas.gather({**self.weights.agreed(), **values})
        for what, value in first.items():
            if any(other[what] != value for other in others):
                raise ValueError(f"{self._owner}: the ranks have different {what}.")

    def put_back_on_error(self) -> AbstractContextManager[None]:
        """Returns a block that puts all sources, of every role, back to their places if it raises."""
        return self._sources.put_back_on_error()

    def state_dict(self) -> dict[str, Any]:
        """Returns plain values: the priority with its losses, and the places of all sources, of every role."""
        return {"dev_weights": self.weights.state_dict(), "sources": self._sources.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], seed: int) -> None:
        """Continues from a state under its seed. A state that does not fit raises an error and changes nothing."""
        check_keys(self._owner, state, "dev_weights", "sources")
        weights = copy.copy(self.weights)
        weights.load_state_dict(state["dev_weights"])
        self._sources.load_state_dict(state["sources"], seed)
        self.weights = weights


class DrawnDevBatches:
    """Dev batches of one update, drawn once and kept, or drawn when they are used."""

    def __init__(self, prober: Prober, sources: ProbeSources, update: int, total: int) -> None:
        self._prober = prober
        self._sources = sources
        self._update = update
        self._total = total
        self._kept: dict[str, list[Numbered]] = {}

    @property
    def kept(self) -> bool:
        """Whether the batches are drawn already."""
        return bool(self._kept)

    def keep(self, names: Iterable[str]) -> None:
        """Draws the batches of these dev sets now; under `prober.alone()` those of all ranks."""
        with self._prober.replicas.raise_on_all_ranks():
            self._kept = {name: list(self.batches(name)) for name in names}

    def batches(self, name: str) -> Iterable[Numbered]:
        """Returns the batches of a dev set that this rank takes, each with its number among those of all ranks."""
        numbers = self._prober.numbers(self._total)
        if name in self._kept:
            return [(number, batch) for number, batch in self._kept[name] if number in numbers]
        return self._sources.batches("dev", name, self._update, numbers, self._total)

    def loss(self, name: str) -> float:
        """Returns the mean loss of a dev set, without gradients and in eval mode: priorities rank by it."""
        return self._prober.loss(("dev", name, self._update), self.batches(name), self._total)

    def gradient(self, name: str, after_each: Callable[[int, Gradient], None] | None = None) -> tuple[Gradient, float]:
        """Returns the gradient of the mean dev loss and that loss. after_each: as in `Prober.gradient`."""
        return self._prober.gradient(("dev", name, self._update), self.batches(name), self._total, after_each)
