"""States of rules: public attributes are saved, checked and restored without a further line."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from assertions import assert_resumes_exactly
from toy_balancers import NAMES, balancer_of

from multidds.rules import Findings, RelevancePlan, Rule, Scorer, State


@dataclass(frozen=True)
class Counting(Rule):
    """A rule of one's own, with every kind of attribute that a state may have."""

    def start(self, training):
        return CountingState(training)


class Sums:
    def __init__(self, size):
        self._size = size
        self.values = np.zeros(size)


class CountingState(State):
    def __init__(self, training):
        self._names = sorted(training.prior)
        self.mixture = dict(training.prior)
        self.updates = 0
        self.mean = 0.0
        self.best = ""
        self.sums = Sums(len(self._names))

    def update(self, probe, round_):
        rewards, errors = probe.table(round_).mean_cosines(round_.weights)
        self.updates += 1
        self.sums.values += [rewards[name] for name in self._names]
        self.mean = float(self.sums.values.mean()) / self.updates
        self.best = max(rewards, key=rewards.get)
        raised = {name: p * (2 if name == self.best else 1) for name, p in self.mixture.items()}
        self.mixture = {name: p / sum(raised.values()) for name, p in raised.items()}
        return Findings(rewards, errors, notes=(f"{self.updates} updates, {self.mean:.6f}",))


def balancer():
    return balancer_of(rule=Counting())


def test_a_rule_of_ones_own_resumes_exactly_without_a_further_line():
    def make():
        own = balancer()

        def step(number):
            update = own.step()
            return update.mixture, update.rewards, update.notes

        return {"balancer": own}, step

    assert_resumes_exactly(make, 6, as_json=True)


def test_a_state_has_the_public_attributes_as_plain_values():
    own = balancer()
    own.step()
    state = json.loads(json.dumps(own.state_dict()["rule"]))
    assert set(state) == {"rule", "mixture", "updates", "mean", "best", "sums"}
    assert (state["rule"], state["updates"]) == ("CountingState", 1)
    assert len(state["sums"]["values"]) == len(NAMES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"updates": "1"}, "'updates'.*int.*'1'"),
        ({"updates": 1.5}, "'updates'.*int"),
        ({"mean": float("nan")}, "'mean'.*finite.*nan"),
        ({"mixture": {"a": 1.0}}, "'mixture'.*'b'"),
        ({"mixture": {"a": 0.5, "b": 0.5, "x": 0.0}}, "'mixture'.*'x'"),
        ({"sums": {"values": [0.0, 1.0]}}, r"'values'.*\(3,\).*\(2,\)"),
        ({"sums": {"values": [0.0, 1.0, float("inf")]}}, "'values'.*finite"),
        ({"sums": {"values": ["a", "b", "c"]}}, "'values'.*numbers"),
        ({"sums": {}}, "'values'"),
        ({"rule": "PlanState"}, "'PlanState'.*'CountingState'"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change, message):
    own = balancer()
    own.step()
    state = own.state_dict()["rule"]
    with pytest.raises(ValueError, match=message):
        own._state.load_state_dict({**state, **change}, {})
    assert own.state_dict()["rule"] == state


def test_a_state_lacks_nothing():
    own = balancer()
    state = own.state_dict()["rule"]
    for key in state:
        with pytest.raises(ValueError, match=f"'{key}'"):
            own._state.load_state_dict({other: value for other, value in state.items() if other != key}, {})
    assert own.state_dict()["rule"] == state


def test_states_of_other_rules_are_refused_by_name():
    own = balancer()
    for rule in (RelevancePlan(), Scorer()):
        with pytest.raises(ValueError, match="'CountingState'"):
            own.load_state_dict(balancer_of(rule=rule).state_dict() | {"averaged": None})


@pytest.mark.claim("The method", "a rule that only watches proposes a mixture and moves none")
def test_a_rule_that_does_not_move_proposes():
    moving, watching = (
        balancer_of(rule=RelevancePlan(move=move), steps=10, examples_per_step=2) for move in (True, False)
    )
    prior = watching.mixture.probabilities
    for _ in range(2):
        moved, watched = moving.step(), watching.step()
        assert watching.mixture.probabilities == watched.mixture == prior
        assert moved.mixture != prior
        assert moved.proposed == {}
        assert watched.proposed.keys() == prior.keys()
        assert watched.proposed != prior
    assert watched.relevance == moved.relevance  # the same evidence
    assert not watching.mixture.learned
