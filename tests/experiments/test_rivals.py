"""Rules of other papers, written with the public protocol alone (experiments/rivals/rivals.py)."""

import math

import pytest
import torch
from assertions import assert_resumes_exactly
from hypothesis import given
from hypothesis import strategies as st
from rivals import Exp3, Exponentiated, inner_products, training_losses
from toys import batches, loss, mlp

from multidds import Balancer, Mixture
from multidds.probes import probe
from multidds.rewards import FromTable
from multidds.rules import Evidence, Training

pytestmark = [pytest.mark.claim("The method", "DoGE and Online Data Mixing follow their formulas")]

PRIOR = {"a": 0.1, "b": 0.2, "c": 0.7}
REWARDS = st.lists(st.floats(-2, 2), min_size=3, max_size=3)


def stepped(state, rewards):
    moved = state.step(Evidence(dict(zip(PRIOR, rewards, strict=True))))
    return None if moved is None else list(moved.values())


@given(st.lists(REWARDS, min_size=1, max_size=5))
def test_exponentiated_steps_multiply(rounds):
    state = Exponentiated(lr=0.3, floor=0.0).start(Training(PRIOR))
    for rewards in rounds:
        moved = stepped(state, rewards)
    weights = [p * math.exp(0.3 * sum(one[i] for one in rounds)) for i, p in enumerate(PRIOR.values())]
    assert moved == pytest.approx([w / sum(weights) for w in weights])


def test_no_share_falls_below_the_floor():
    state = Exponentiated(lr=1.0, floor=0.1).start(Training(PRIOR))
    for _ in range(100):
        moved = stepped(state, [1.0, 0.0, 0.0])
    assert moved == pytest.approx([0.98, 0.01, 0.01], rel=0.02)


@given(st.lists(REWARDS, min_size=1, max_size=5))
def test_exp3_is_the_formula_of_online_data_mixing(rounds):
    state = Exp3(smoothing=0.8).start(Training(PRIOR))
    averages = [0.0] * 3
    for update, rewards in enumerate(rounds, start=1):
        moved = stepped(state, rewards)
        averages = [0.8 * a + 0.2 * r for a, r in zip(averages, rewards, strict=True)]
        before = min(1 / 3, math.sqrt(math.log(3) / (3 * max(update - 1, 1))))
        now = min(1 / 3, math.sqrt(math.log(3) / (3 * update)))
        exponents = torch.tensor(averages, dtype=torch.float64) * before
        assert moved == pytest.approx(((1 - 3 * now) * exponents.softmax(0) + now).tolist())


@pytest.mark.parametrize("rule", [Exponentiated(), Exp3()])
def test_a_rival_resumes_exactly(rule):
    def make():
        state = rule.start(Training(PRIOR))
        return {"state": state}, lambda i: stepped(state, [0.1 * i, 0.5, 1 - 0.1 * i])

    assert_resumes_exactly(make, 6, as_json=True)


@pytest.mark.parametrize("rule", [Exponentiated(), Exp3()])
def test_a_rival_refuses_rewards_and_states_that_are_not_its_own(rule):
    state = rule.start(Training(PRIOR))
    before = state.state_dict()
    assert stepped(state, [math.nan, 0.0, 0.0]) is None
    assert state.state_dict() == before
    other = Exp3() if isinstance(rule, Exponentiated) else Exponentiated()
    with pytest.raises(ValueError, match=type(other).__name__):
        state.load_state_dict(other.start(Training(PRIOR)).state_dict())
    with pytest.raises(ValueError, match="'x'"):
        state.load_state_dict(rule.start(Training({"x": 1.0})).state_dict())


@pytest.mark.parametrize("make", [lambda: Exponentiated(lr=0), lambda: Exponentiated(floor=1), lambda: Exp3(1.0)])
def test_settings_that_make_no_sense_are_refused(make):
    with pytest.raises(ValueError, match="must be"):
        make()


def test_the_reward_of_doge_is_the_inner_product_of_clipped_gradients():
    model, train, dev = mlp(), batches(("a", "b"), 1), batches(("x", "y"), 1, seed=1)

    def clipped(batch):
        flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss(model, batch), tuple(model.parameters()))])
        return flat / max(1.0, float(flat.norm()))

    v = (clipped(dev["x"][0]) + clipped(dev["y"][0])) / 2
    expected = [float(clipped(train[name][0]) @ v) for name in ("a", "b")]
    table = probe(model, loss, train, dev)
    assert inner_products(table, torch.tensor([0.5, 0.5])).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("function", "rule"), [(inner_products, Exponentiated()), (training_losses, Exp3())], ids=["doge", "odm"]
)
def test_a_rival_moves_a_mixture_in_a_balancer(function, rule):
    mixture = Mixture({"a": 0.2, "b": 0.8})
    train, dev = batches(("a", "b"), 1), batches(("x",), 1, seed=1)
    reward = FromTable(function, sketch=64)
    update = Balancer(mixture, mlp(), loss, train=train, dev=dev, every=1, reward=reward, rule=rule).step()
    assert update.skipped is None
    assert update.mixture != {"a": 0.2, "b": 0.8}
    if isinstance(rule, Exp3):
        assert update.rewards == pytest.approx(update.train_losses)
