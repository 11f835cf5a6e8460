"""The weights of the dev sets now: the priority, and the losses by which it may rank them.

The losses are those of the last full validation, if the caller has given them, or else of a pass that the owner makes.
`priorities` has the arithmetic.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._base.checks import check_names
from .._base.ranks import Ranks
from .._base.state import check_keys
from . import priorities


class DevWeights:
    """The priority of named dev sets. owner: opens the error messages."""

    def __init__(self, owner: str, names: Iterable[str]) -> None:
        self._owner, self.names = owner, tuple(names)
        self._priority: priorities.Priority = "regular"
        self._losses: dict[str, float] | None = None

    @property
    def priority(self) -> priorities.Priority:
        return self._priority

    @priority.setter
    def priority(self, priority: priorities.Priority) -> None:
        priorities.check(priority, self.names)
        self._priority = dict(priority) if isinstance(priority, Mapping) else priority

    @property
    def losses(self) -> dict[str, float] | None:
        """The losses of the last full validation, by which priorities rank; None: those of a pass over the dev sets."""
        return self._losses

    @losses.setter
    def losses(self, losses: Mapping[str, float] | None) -> None:
        if losses is not None:
            where = f"{self._owner}.dev_losses"
            check_names(where, self.names, losses)
            if bad := [name for name in losses if not math.isfinite(losses[name])]:
                raise ValueError(f"{where}: losses must be finite, but {bad[0]!r} is {losses[bad[0]]}.")
        self._losses = None if losses is None else {name: float(losses[name]) for name in self.names}

    @property
    def ranks_by_probe(self) -> bool:
        return priorities.needs_losses(self._priority) and self._losses is None

    def ranking(self, measured: Callable[[str], float]) -> dict[str, float]:
        """Returns the losses to rank by. measured: name -> loss of a pass over a dev set, if one is needed."""
        if not self.ranks_by_probe:
            return self._losses or dict.fromkeys(self.names, 0.0)
        return {name: measured(name) for name in self.names}

    def weights(self, ranking: Mapping[str, float], replicas: Ranks) -> dict[str, float]:
        """Returns the weights, the same bits on every rank; equal ones if a loss is not finite."""
        finite = all(map(math.isfinite, ranking.values()))
        with replicas.raise_on_all_ranks():
            weights = priorities.weights_of(self._priority if finite else "regular", ranking)
        weights = replicas.gather(weights)[0]
        return {name: weights[name] for name in self.names}

    def agreed(self) -> dict[str, Any]:
        """Returns {what: value} that must be equal on all ranks."""
        return {
            "dev sets, or another order of them": self.names,
            "priorities": "a function" if callable(self._priority) else self._priority,
            "dev_losses (set them on every rank)": self._losses,
        }

    def state_dict(self) -> dict[str, Any]:
        return {"priority": None if callable(self._priority) else self._priority, "dev_losses": self._losses}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_keys(self._owner, state, "priority", "dev_losses")
        if state["priority"] is None and not callable(self._priority):
            raise ValueError(f"{self._owner}: the priority of the state was a function; give it at construction again.")
        if state["priority"] is not None:
            priorities.check(state["priority"], self.names)
        self.losses = state["dev_losses"]
        if state["priority"] is not None:
            self.priority = state["priority"]
