"""From rewards to new probabilities: the rules that move a mixture.

A rule is settings with a `start` method; the state that it returns takes `Evidence` and gives probabilities. `Anchored`
is the default, `Scorer` is the paper's; anything with the `Rule` protocol can take their place:

>>> from multidds.rules import Evidence, Scorer
>>> state = Scorer(lr=1.0, floor=0.0).start({"a": 0.5, "b": 0.5})
>>> moved = state.step(Evidence(rewards={"a": 1.0, "b": 0.0}), plan={"a": 0.5, "b": 0.5})
>>> round(moved["a"], 3)
0.731
"""

from .anchored import Anchored
from .paper import paper
from .rule import Evidence, Rule, RuleState
from .scorer import Scorer

__all__ = ["Anchored", "Evidence", "Rule", "RuleState", "Scorer", "paper"]
