"""Any text that is not empty is the name of a dataset."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_names import NAMES
from safetensors.torch import load, save
from toys import batches, loss, mlp

from multidds import Balancer, Mixture
from multidds.rules import MovingAverage, RelevancePlan, Scorer

GROUPS = {"mixture", "reward", "train_loss", "dev_loss", "dev_weight", "noise", "worth", "balance", "passes"}


def balancer_of(names, **options):
    return Balancer(
        Mixture.uniform(names), mlp(), loss, train=batches(names, 2), dev=batches(names, 2, seed=1), every=1, **options
    )


@pytest.mark.parametrize("rule", [RelevancePlan(), Scorer(MovingAverage(), lr=1.0)])
@settings(max_examples=15)
@given(names=st.lists(st.text(min_size=1), min_size=1, max_size=4, unique=True))
@pytest.mark.slow
def test_an_update_and_its_state_take_any_names(rule, names):
    balancer, other = (balancer_of(names, rule=rule) for _ in range(2))
    balancer.step()
    state = balancer.state_dict()
    tensors = load(save(state.pop("tensors")))
    other.load_state_dict({**json.loads(json.dumps(state)), "tensors": tensors})
    assert other.step().scalars() == balancer.step().scalars()


@pytest.mark.parametrize("name", NAMES)
def test_the_group_of_a_number_in_a_log_ends_at_the_first_slash(name):
    for key in balancer_of([name]).step().scalars(passes={name: 1.0}):
        group, _, of = key.partition("/")
        assert group in GROUPS
        assert of == name or group == "balance"
