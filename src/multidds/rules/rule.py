"""The rule: what turns the gradients of a round into new probabilities.

A rule is two small classes. Its settings are a dataclass, which can be printed and shared; `start` makes its state for
one training. The state has one method, `update(probe, round)`. Its attributes resume without a further line:

>>> from dataclasses import dataclass
>>> class Halved(State):
...     def __init__(self, mixture):
...         self.mixture = mixture
...         self.updates = 0
...     def update(self, probe, round_):
...         self.updates += 1
...         return Findings(rewards=dict.fromkeys(self.mixture, 0.5**self.updates))
>>> @dataclass(frozen=True)
... class Halving(Rule):
...     def start(self, training):
...         return Halved(dict(training.prior))
>>> state = Halving().start(Training(prior={"a": 0.5, "b": 0.5}))
>>> state.update(None, None).rewards["a"]
0.5
>>> state.state_dict()
{'rule': 'Halved', 'mixture': {'a': 0.5, 'b': 0.5}, 'updates': 1}
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from torch import Tensor

from .._base.state import Checks, check_keys, plain, restored, sums_to_one
from ..probes.probe import Probe
from ..probes.round import Round, Training
from ..probes.table import Table

Relevance: TypeAlias = dict[str, dict[str, tuple[float, float]]]


@dataclass(frozen=True)
class Findings:
    """What a rule has found in a round, for those who read the update.

    rewards: {dataset: reward} of the datasets that were probed.
    errors: {dataset: standard error of its reward}; empty if errors were not estimated.
    table: the table of inner products, if the rule was asked to keep it.
    notes: sentences for a reader of the update.
    """

    rewards: dict[str, float]
    errors: dict[str, float] = field(default_factory=dict)
    table: Table | None = None
    notes: tuple[str, ...] = ()


class State(ABC):
    """The state of a rule for one training.

    Public attributes are the state: arrays, numbers, strings, dicts and objects of these are saved, checked and
    restored. The names of attributes that follow from `start` again begin with an underscore.

    CHECKS: {attribute: function (where, value)}, which raises a ValueError if a saved value is impossible. Type, shape,
        names and finiteness need none.
    """

    CHECKS: ClassVar[Checks] = {"mixture": sums_to_one}
    mixture: dict[str, float]  # the probabilities now; before the first update, those at which training starts

    @abstractmethod
    def update(self, probe: Probe, round_: Round) -> Findings:
        """Takes what it needs of a round from the probe, and moves its mixture.

        `NotFiniteError`, which the probe raises, means that nothing moves; so all of the probe comes first.
        """

    @property
    def signal(self) -> float:
        """The share of the evidence that is not noise, 0 to 1; NaN if the rule does not estimate it."""
        return math.nan

    def relevance(self) -> Relevance | None:
        """Returns {dev set: {dataset: (relevance, standard error)}}; None if the rule does not estimate it."""
        return None

    def worth(self) -> dict[str, tuple[float, float]]:
        """Returns {dataset: (worth of one more pass in new examples, standard error)} of those that were measured."""
        return {}

    def held(self) -> dict[str, float]:
        """Returns {dataset: passes over the whole training} of those whose shares a limit of passes holds."""
        return {}

    def observe(self, name: str) -> None:  # noqa: B027
        """Takes .grad as a gradient of the dataset `name`. Only moving averages do."""

    def forget_gradients(self) -> None:  # noqa: B027
        """Forgets gradients of parameters that were replaced."""

    def state_dict(self) -> dict[str, Any]:
        """Returns plain values that survive JSON; `tensors` has the rest."""
        return {"rule": type(self).__name__, **plain(self)}

    def tensors(self) -> dict[str, Tensor]:
        """Returns {key: tensor}, copies."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Continues where the other state was. One that does not fit raises an error and changes nothing."""
        self.check_rule(state)
        values = {key: value for key, value in state.items() if key != "rule"}
        vars(self).update(vars(restored(f"{type(self).__name__}: the state", self, values)))

    def check_rule(self, state: Mapping[str, Any]) -> None:
        """Raises a ValueError if the state is one of another rule."""
        owner = type(self).__name__
        check_keys(owner, state, "rule")
        if state["rule"] != owner:
            raise ValueError(f"Balancer: the state is of the rule {state['rule']!r}, not {owner!r}.")


class Rule(ABC):
    """The settings of a rule: a frozen dataclass with `start`.

    halves: whether it compares the halves of a probe: then there are two probe batches of each set, at averaged
        parameters.
    subsets: whether its updates may probe a subset of the sets, in rotation.
    move: whether the mixture follows it. False: the updates only say what it proposes.
    """

    halves: ClassVar[bool] = False
    subsets: ClassVar[bool] = False
    move: bool = True

    @property
    def steps_ahead(self) -> bool:
        """Whether it probes all dev sets anew for each dataset, one step ahead."""
        return False

    @property
    def keeps_gradients(self) -> bool:
        """Whether its state has vectors as large as the parameters."""
        return False

    @abstractmethod
    def start(self, training: Training) -> State:
        """Returns the state for one training."""
