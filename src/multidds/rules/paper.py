"""The paper's rules by name."""

from .moving_average import MovingAverage
from .rewards import Cosine, Reward, StabilizedCosine
from .scorer import Scorer

_REWARDS: dict[str, Reward] = {
    "multidds": Cosine(),
    "multidds-s": StabilizedCosine(),
    "moving-average": MovingAverage(),
}


def paper(name: str = "multidds-s") -> Scorer:
    """Returns a rule of the paper, for `Balancer(..., rule=paper("multidds-s"))`.

    name: "multidds", "multidds-s" (the paper's main method) or "moving-average" (its ablation). Default "multidds-s".
    """
    if name not in _REWARDS:
        raise ValueError(f"paper: name must be one of {', '.join(map(repr, _REWARDS))}, but it is {name!r}.")
    return Scorer(reward=_REWARDS[name])
