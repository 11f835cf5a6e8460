"""States with one random damage: refused by name without a change, or accepted and of use.

MULTIDDS_FUZZ_CASES=5000 makes thousands of damaged states; by default there are 300.
"""

import copy
import math
import os
import random

import pytest
import torch
from assertions import assert_equal
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
SCALARS = [None, True, -1, 3, 2.5, -2.5, 1e300, 10**30, math.nan, math.inf, -math.inf, "x", "", [], {}, [1.0, 2.0]]


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


def damaged(state, rng):
    """Returns a copy with one damage, and the two innermost keys on the way to it."""
    state = copy.deepcopy(state)
    holder, key, path = {"": state}, "", [""]
    while isinstance(holder[key], dict | list) and holder[key] and rng.random() < 0.85:
        holder = holder[key]
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        path += [key] if isinstance(key, str) else []
    value = holder[key]
    kind = rng.choice(["remove", "add", "other", "other", "other"])
    if kind == "remove":
        del holder[key]
    elif kind == "add" and isinstance(value, dict):
        value["surplus"] = rng.choice(SCALARS)
        path.append("surplus")
    elif kind == "add" and isinstance(value, list):
        value.append(rng.choice(SCALARS))
    elif isinstance(value, torch.Tensor):
        wrong = [value[:-1], value[None], value.long(), value * 1j, "x", None, value.fill_(math.nan)]
        holder[key] = rng.choice(wrong)
    elif isinstance(value, int | float) and rng.random() < 0.3:
        holder[key] = rng.choice([-value - 1, str(value), [value], value * 1e9])
    else:
        holder[key] = rng.choice(SCALARS)
    return state.get("", state), path[-2:]


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
            assert any(key.lower() in str(error).lower() for key in keys if key), (keys, str(error))
            assert_equal(balancer.state_dict(), before)
        else:
            for _ in range(2):
                balancer.step()
            balancer.load_state_dict(balancer.state_dict())
            balancer = made(name)
    assert refused > CASES / len(SETTINGS) / 3
