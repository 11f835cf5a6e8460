"""How much of a mixture's way is learning: where its rule goes by itself, with rewards that are all the same.

The default rule then is its anchor; the paper's drifts towards uniform; a rival goes where its formula leads.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from .._base.carrying import carried_shares
from .._base.checks import check_state, is_share, is_state
from .._base.packing import are_packed, packed, unpacked


class Rule(Protocol):
    """The state of a rule, as `anchored`, `scorer` and `rivals` have them."""

    def step(
        self, rewards: Sequence[float], noise: Sequence[float] | None = None, anchor: Sequence[float] | None = None
    ) -> list[float] | None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def carried(
        self, state: Mapping[str, Any], places: Sequence[int | None], probabilities: Sequence[float]
    ) -> dict[str, Any]: ...

    def check_state(self, state: Mapping[str, Any]) -> None: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Drift:
    """A twin of a rule that gets the mean of the rewards in place of every one. None: a rule that keeps its anchor."""

    def __init__(self, twin: Rule | None, anchor: Sequence[float]) -> None:
        self._twin = twin
        self.mixture = list(anchor)

    def step(self, rewards: Sequence[float]) -> None:
        """The rule has made an update with these rewards."""
        if self._twin is not None:
            mean = math.fsum(rewards) / len(rewards)
            self.mixture = self._twin.step([mean] * len(self.mixture)) or self.mixture

    def state_dict(self) -> dict[str, Any]:
        return {"mixture": packed(self.mixture), "rule": {} if self._twin is None else self._twin.state_dict()}

    def carried(
        self, state: Mapping[str, Any], before: Sequence[str], names: Sequence[str], places: Sequence[int | None]
    ) -> dict[str, Any]:
        """A state for other datasets: before, names: those there were and are; places: where each was."""
        old, own = (
            dict(zip(of, p, strict=True)) for of, p in ((before, unpacked(state["mixture"])), (names, self.mixture))
        )
        shares = carried_shares(old, own)
        now = [shares[name] for name in names]
        return {"mixture": now, "rule": {} if self._twin is None else self._twin.carried(state["rule"], places, now)}

    def check_state(self, state: Mapping[str, Any]) -> None:
        check_state("Balancer: drift", state, mixture=are_packed(is_share, len(self.mixture)), rule=is_state)
        if self._twin is not None:
            self._twin.check_state(state["rule"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state(state)
        self.mixture = unpacked(state["mixture"])
        if self._twin is not None:
            self._twin.load_state_dict(state["rule"])


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Total variation: half of the sum of the differences."""
    return sum(abs(p - q) for p, q in zip(one, other, strict=True)) / 2
