import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multidds._base.randomness import derive, preserved, random_states, seed_all, set_random_states

CPU = torch.device("cpu")


def numbers():
    return [random.gauss(0, 1), random.random(), np.random.randn(), np.random.rand(), torch.rand(3).tolist()]


@pytest.mark.parametrize("drawn", [0, 1, 3])  # odd: half a pair of normal numbers is kept back
def test_random_states_are_put_back_bit_for_bit(drawn, tmp_path):
    with preserved():
        for _ in range(drawn):
            numbers()
        torch.save(random_states(CPU), tmp_path / "states.pt")
        expected = [numbers() for _ in range(3)]
        set_random_states(CPU, torch.load(tmp_path / "states.pt", weights_only=True))
        assert [numbers() for _ in range(3)] == expected


def test_random_states_are_flat_tensors_for_any_checkpoint():
    assert all(isinstance(state, torch.Tensor) for state in random_states(CPU).values())


@given(st.lists(st.text(st.characters()), min_size=1, max_size=3), st.lists(st.text(st.characters()), max_size=3))
def test_different_keys_have_different_seeds(one, other):
    assert (derive(*one) == derive(*other)) == (one == other)


def test_seeds_of_keys_tell_apart_what_a_separator_would_join():
    assert derive("a\x1fstr:b") != derive("a", "b")
    assert derive("a\\sb") != derive("a\x1fb")
    assert derive(1) != derive("1")
    assert derive("\ud800") != derive("?")


def test_random_states_of_an_accelerator_are_seeded_and_put_back(monkeypatch):
    """There is no accelerator here: one is stood in for, with the calls of torch.cuda, torch.mps and torch.xpu."""

    class Module:
        generator = torch.Generator().manual_seed(7)

        @classmethod
        def get_rng_state(cls, device):
            return cls.generator.get_state()

        @classmethod
        def set_rng_state(cls, state, device):
            cls.generator.set_state(state)

    of_cpu = torch.Generator
    monkeypatch.setattr(torch, "Generator", lambda device=None: of_cpu())
    monkeypatch.setattr(torch, "get_device_module", lambda device: Module)
    device, before = torch.device("cuda", 0), Module.generator.get_state()
    with preserved([device]):
        seed_all(3, [device])
        first = torch.rand(4, generator=Module.generator)
        seed_all(3, [device])
        assert torch.equal(first, torch.rand(4, generator=Module.generator))
    assert torch.equal(Module.generator.get_state(), before)
