"""States with anything wrong in them: a ValueError with a sentence, and nothing has changed."""

import copy
import json
import math
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset
from toys import batches, loss, mlp

from multidds import Balancer, Draws, Mixture, MixtureSampler, Replay, Scorer, interleave
from multidds.integrations.huggingface import MixedDataset
from multidds.mixture.schedule import Schedule
from multidds.rules.rivals import Exp3, Exponentiated
from multidds.sampling.loader import mixed_loader

NAMES = ("a", "b")
CASES = int(os.environ.get("MULTIDDS_FUZZ_CASES", "40"))
WRONG = st.sampled_from(
    [None, True, -1, 0, 1, 7, 2**63, 10**5000, 0.5, math.nan, math.inf, -1e308, 1e-320, "", "x", b"x", [], [1], {},
     {"a": 1}, {1: 2}, {"a": None, "b": None}, [[0, {"a": 1.0}]], [[0, {"a": 0.5, "b": 0.5}], [5]], object(),
     torch.zeros(2), {"a": {}, "b": {}}]
)  # fmt: skip


def moved(balancer):
    for _ in range(3):
        balancer.step()
    return balancer


def balancer(**options):
    model = mlp()
    options = {"every": 1, **options}
    return Balancer(Mixture.uniform(NAMES), model, loss, train=batches(NAMES), dev=batches(NAMES, seed=1), **options)


def averaging():
    made = balancer(reward="moving-average", sketch=None)
    return moved(made)


def drawn(sampler, count=5):
    iterator = iter(sampler)
    for _ in range(count):
        next(iterator)
    return sampler


def data():
    return {name: TensorDataset(torch.arange(6.0)[:, None]) for name in NAMES}


def consumed():
    made = MixedDataset(data(), Mixture.uniform(NAMES))
    made.consume(3)
    return made


# What has a state -> (one that was used, what is done with one that has loaded a state that was taken for good).
OBJECTS = {
    "mixture": (lambda: Mixture({"a": 0.25, "b": 0.75}), lambda it: it.at(0.5)),
    "replay": (lambda: Replay(Mixture.uniform(NAMES), [(2, {"a": 1.0, "b": 0.0})]), lambda it: it.step()),
    "schedule": (
        lambda: Schedule(Mixture.uniform(NAMES), [(0.0, {"a": 1.0, "b": 0.0}), (1.0, {"a": 0.0, "b": 1.0})], 9, 2),
        lambda it: it.step(),
    ),
    "draws": (lambda: drawn_directly(), lambda it: it.draw()),
    "sampler": (
        lambda: drawn(MixtureSampler({"a": 3, "b": 5}, Mixture.uniform(NAMES), batch_size=2)),
        lambda it: next(iter(it)),
    ),
    "interleave": (lambda: drawn(interleave(batches(NAMES), Mixture.uniform(NAMES))), next),
    "loader": (lambda: drawn(mixed_loader(data(), Mixture.uniform(NAMES), 2), 2), lambda it: next(iter(it))),
    "dataset": (consumed, lambda it: it[it.position]),
    "balancer": (lambda: moved(balancer(priority="low")), lambda it: it.step()),
    "balancer with limits": (
        lambda: moved(balancer(sizes={"a": 9, "b": 9}, max_passes=5, steps=9, examples=40)),
        lambda it: it.step(),
    ),
    "balancer with a scorer": (
        lambda: moved(balancer(reward="multidds-s", scorer=Scorer(optimizer=torch.optim.Adam))),
        lambda it: it.step(),
    ),
    "balancer of DoGE": (lambda: moved(balancer(reward="multidds", scorer=Exponentiated())), lambda it: it.step()),
    "balancer of Exp3": (lambda: moved(balancer(reward="multidds", scorer=Exp3())), lambda it: it.step()),
    "balancer with averages": (averaging, lambda it: it.step()),
}


def drawn_directly():
    draws = Draws(Mixture.uniform(NAMES), seed=3)
    for _ in range(7):
        draws.draw()
    draws.rule(Mixture({"a": 0.9, "b": 0.1}), 9)
    return draws


def places(state, before=()):
    """Every way to a value within a state."""
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    for key, value in items:
        yield (*before, key)
        yield from places(value, (*before, key))


def spoilt(state, place, wrong, how):
    state = copy.deepcopy(state)
    inner = state
    for key in place[:-1]:
        inner = inner[key]
    if how == "missing" and not (isinstance(inner, list) and not inner):
        del inner[place[-1]]
    elif how == "more" and isinstance(inner, list):
        inner.append(wrong)
    elif how == "more":
        inner["more"] = wrong
    else:
        inner[place[-1]] = wrong
    return state


def readable(state):
    return json.dumps(state, default=lambda value: value.tolist() if torch.is_tensor(value) else repr(value))


@pytest.mark.parametrize("kind", OBJECTS)
@settings(max_examples=CASES)
@given(st.data())
def test_a_damaged_state_is_refused_with_a_sentence_and_changes_nothing(kind, data):
    make, use = OBJECTS[kind]
    it = make()
    good = it.state_dict()
    place = data.draw(st.sampled_from(list(places(good))))
    state = spoilt(good, place, data.draw(WRONG), data.draw(st.sampled_from(["other", "other", "missing", "more"])))
    mixture = getattr(it, "mixture", None)
    before = readable(good), mixture and mixture.probabilities
    try:
        it.load_state_dict(state)
    except ValueError as error:
        assert ": " in str(error)
        assert str(error).endswith((".", "?"))
        assert len(str(error)) < 1000
        assert "\n" not in str(error)
        assert (readable(it.state_dict()), mixture and mixture.probabilities) == before
    else:
        use(it)  # it was good
    it.load_state_dict(good)
    assert readable(it.state_dict()) == before[0]


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("state", [None, 5, "state", [], {}, {"steps": 1}])
def test_what_is_no_state_is_refused(kind, state):
    it = OBJECTS[kind][0]()
    before = readable(it.state_dict())
    with pytest.raises(ValueError, match="the state has no|a state is a dict|is missing|of another rule"):
        it.load_state_dict(state)
    assert readable(it.state_dict()) == before
