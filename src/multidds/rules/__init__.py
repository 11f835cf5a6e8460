"""What moves a mixture: the rules, and the rewards of the paper's rule.

`RelevancePlan` is the default, `Scorer` is the paper's. A rule is settings with a `start` method; the state that it
returns has one method, `update(probe, round)`. `rule.py` shows a rule of one's own.

>>> from multidds.rules import Scorer, Training
>>> state = Scorer(lr=1.0, floor=0.0).start(Training(prior={"a": 0.5, "b": 0.5}))
>>> state.step({"a": 1.0, "b": 0.0})
>>> round(state.mixture["a"], 3)
0.731
"""

from ..probes.probe import NotFiniteError, Probe
from ..probes.round import Round, Training
from .moving_average import MovingAverage
from .paper import paper
from .relevance_plan import RelevancePlan
from .rewards import Cosine, Reward, StabilizedCosine
from .rule import Findings, Rule, State
from .scorer import Scorer

__all__ = [
    "Cosine",
    "Findings",
    "MovingAverage",
    "NotFiniteError",
    "Probe",
    "RelevancePlan",
    "Reward",
    "Round",
    "Rule",
    "Scorer",
    "StabilizedCosine",
    "State",
    "Training",
    "paper",
]
