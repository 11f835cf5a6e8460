"""States with one random damage: refused by name without a change, or accepted and of use.

MULTIDDS_FUZZ_CASES=5000 makes thousands of damaged states; by default there are 300.
"""

import copy
import os
import random

import pytest
import torch
from assertions import assert_equal
from damaged_states import damaged
from toy_balancers import balancer_of
from toys import batches, mlp, train_step

from multidds import Limits, Probes
from multidds.rules import MovingAverage, RelevancePlan, Scorer

CASES = int(os.environ.get("MULTIDDS_FUZZ_CASES", "300"))
LENGTH = {"steps": 40, "examples_per_step": 5}
SETTINGS = {
    "plan": {"rule": RelevancePlan(), **LENGTH, "limits": Limits(max_passes=9.0)},
    "no plan": {"rule": RelevancePlan(), "priority": {"x": 2.0, "y": 1.0, "z": 0.0}},
    "paper": {"priority": "low"},
    "Adam": {"rule": Scorer(optimizer=torch.optim.Adam, inner_steps=3), "limits": Limits(bounds={"a": (0.1, 0.5)})},
    "moving averages": {"rule": Scorer(MovingAverage()), "probes": Probes(batches=2, average=5)},
}


def made(name):
    return balancer_of(mlp(), batches("abc", 4), **SETTINGS[name])


def saved(name):
    """The state after three steps, in which all parts of it are there."""
    balancer = made(name)
    for i in range(3):
        train_step(balancer._probe.model.model, i, lr=0.1)
        balancer.step()
    if name == "paper":
        balancer.dev_losses = {"x": 1.0, "y": 2.0, "z": 3.0}
    return balancer.state_dict()


@pytest.mark.claim("The method", "damaged states are refused by name, and nothing changes, or are of use")
@pytest.mark.parametrize("name", SETTINGS)
def test_a_damaged_state_is_refused_by_name_or_of_use(name):
    state, rng, balancer, refused = saved(name), random.Random(name), made(name), 0
    before = copy.deepcopy(balancer.state_dict())
    for _ in range(CASES // len(SETTINGS)):
        other, keys = damaged(state, rng)
        try:
            balancer.load_state_dict(other)
        except ValueError as error:
            refused += 1
            assert any(key.lower() in str(error).lower() for key in keys), (keys, str(error))
            assert_equal(balancer.state_dict(), before)
        else:
            for _ in range(2):
                balancer.step()
            balancer.load_state_dict(balancer.state_dict())
            balancer = made(name)
    assert refused > CASES / len(SETTINGS) / 3
