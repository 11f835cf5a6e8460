"""From rewards to new probabilities: the rules that move a mixture.

A rule is settings with a `start` method; the state that it returns takes `Evidence` and gives probabilities.
`RelevancePlan` is the default, `Scorer` is the paper's; anything with the `Rule` protocol can take their place:

>>> from multidds.rules import Evidence, Scorer, Training
>>> state = Scorer(lr=1.0, floor=0.0).start(Training(prior={"a": 0.5, "b": 0.5}))
>>> moved = state.step(Evidence(rewards={"a": 1.0, "b": 0.0}))
>>> round(moved["a"], 3)
0.731
"""

from .paper import paper
from .relevance_plan import RelevancePlan
from .rule import Evidence, Rule, RuleState, Training
from .scorer import Scorer

__all__ = ["Evidence", "RelevancePlan", "Rule", "RuleState", "Scorer", "Training", "paper"]
