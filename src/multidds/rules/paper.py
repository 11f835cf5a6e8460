"""The paper's settings by name."""

from typing import Any

from ..rewards.kinds import Cosine, MovingAverage, StabilizedCosine
from .scorer import Scorer

_REWARDS = {"multidds": Cosine(), "multidds-s": StabilizedCosine(), "moving-average": MovingAverage()}


def paper(name: str = "multidds-s") -> dict[str, Any]:
    """Returns {"reward": ..., "rule": ...} of the paper, for `Balancer(..., **paper("multidds-s"))`.

    name: "multidds", "multidds-s" (the paper's main method) or "moving-average" (its ablation). Default "multidds-s".
    """
    if name not in _REWARDS:
        raise ValueError(f"paper: name must be one of {', '.join(map(repr, _REWARDS))}, but it is {name!r}.")
    return {"reward": _REWARDS[name], "rule": Scorer()}
