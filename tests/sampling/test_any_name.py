"""Any text that is not empty is the name of a dataset."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_names import NAMES
from safetensors.torch import load, save
from toys import batches, loss, mlp

from multidds import Balancer, Mixture, MixtureSampler, interleave
from multidds.rules import Scorer
from multidds.sampling.mixed_dataset import MixedDataset

names = st.lists(st.text(min_size=1), min_size=1, max_size=4, unique=True)


@given(names)
def test_a_mixture_of_any_names_survives_json(given):
    mixture = Mixture.proportional({name: i + 1 for i, name in enumerate(given)})
    other = Mixture.uniform(given)
    other.load_state_dict(json.loads(json.dumps(mixture.state_dict())))
    assert other.probabilities == mixture.probabilities
    assert repr(mixture).isprintable()


@given(names)
def test_draws_do_not_depend_on_what_datasets_are_called(given):
    sizes = {name: 5 + i for i, name in enumerate(given)}
    sampler = MixtureSampler(sizes, Mixture.proportional(sizes), batch_size=4, seed=1)
    drawn = [next(iter(sampler)) for _ in range(6)]
    assert all(0 <= index < sum(sizes.values()) for indices in drawn for index in indices)
    other = MixtureSampler(sizes, Mixture.proportional(sizes), batch_size=4, seed=9)
    other.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert next(iter(other)) == next(iter(sampler))
    stream = interleave({name: [torch.zeros(2)] for name in given}, Mixture.uniform(given))
    assert {next(stream)[0] for _ in range(50)} <= set(given)
    dataset = MixedDataset({name: list(range(size)) for name, size in sizes.items()}, Mixture.proportional(sizes))
    assert dataset[3] in range(9)


@settings(max_examples=15)
@given(names)
@pytest.mark.slow
def test_an_update_and_its_state_take_any_names(given):
    def made():
        return Balancer(
            Mixture.uniform(given), mlp(), loss, train=batches(given), dev=batches(given, seed=1), every=1,
            reward="moving-average", scorer=Scorer(lr=1.0),
        )  # fmt: skip

    balancer, other = made(), made()
    update = balancer.step()
    facts = {f"balance/{fact}" for fact in ("drift", "learned", "unlearned")}
    assert update.scalars(passes=dict.fromkeys(given, 1.0)).keys() - facts == {
        f"{group}/{name}"
        for group in ("mixture", "reward", "dev_loss", "dev_weight", "train_loss", "passes")
        for name in given
        if group != "train_loss" or name in update.train_losses
    }
    state = balancer.state_dict()
    tensors = load(save(state.pop("tensors")))
    other.load_state_dict({**json.loads(json.dumps(state)), "tensors": tensors})
    assert other.step().scalars() == balancer.step().scalars()


@pytest.mark.parametrize("name", NAMES)
def test_the_group_of_a_number_in_a_log_ends_at_the_first_slash(name):
    balancer = Balancer(
        Mixture.uniform([name]), mlp(), loss, train=batches([name]), dev=batches([name], seed=1), every=1
    )
    for key in balancer.step().scalars():
        group, _, of = key.partition("/")
        assert group in ("mixture", "reward", "train_loss", "dev_loss", "dev_weight", "noise", "balance")
        assert of == name or group == "balance"
