import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toys import batches, loss, mlp

from multidds import Balancer, Exp3, Exponentiated, Mixture, rewards
from multidds.probes import probe

pytestmark = [pytest.mark.claim("The method", "DoGE and Online Data Mixing follow their formulas")]

PRIOR = [0.1, 0.2, 0.7]
REWARDS = st.lists(st.floats(-2, 2), min_size=3, max_size=3)


@given(st.lists(REWARDS, min_size=1, max_size=5))
def test_exponentiated_steps_multiply(rounds):
    rule = Exponentiated(lr=0.3, floor=0.0).started(PRIOR)
    for one in rounds:
        found = rule.step(one)
    weights = [p * math.exp(0.3 * sum(one[i] for one in rounds)) for i, p in enumerate(PRIOR)]
    assert found == pytest.approx([w / sum(weights) for w in weights])


def test_no_share_falls_below_the_floor():
    rule = Exponentiated(lr=1.0, floor=0.1).started(PRIOR)
    for _ in range(100):
        found = rule.step([1.0, 0.0, 0.0])
    assert found == pytest.approx([0.98, 0.01, 0.01], rel=0.02)


@given(st.lists(REWARDS, min_size=1, max_size=5))
def test_exp3_is_the_formula_of_online_data_mixing(rounds):
    rule = Exp3(smoothing=0.8).started(PRIOR)
    average = [0.0] * 3
    for update, one in enumerate(rounds, start=1):
        found = rule.step(one)
        average = [0.8 * a + 0.2 * r for a, r in zip(average, one, strict=True)]
        before = min(1 / 3, math.sqrt(math.log(3) / (3 * max(update - 1, 1))))
        now = min(1 / 3, math.sqrt(math.log(3) / (3 * update)))
        exponents = torch.tensor(average, dtype=torch.float64) * before
        expected = (1 - 3 * now) * exponents.softmax(0) + now
        assert found == pytest.approx(expected.tolist())


@pytest.mark.parametrize("settings", [Exponentiated(), Exp3()])
def test_a_rival_resumes_exactly_and_refuses_what_is_not_its_own(settings):
    rounds = [[0.1 * i, 0.5, 1 - 0.1 * i] for i in range(6)]
    whole, first, second = (settings.started(PRIOR) for _ in range(3))
    expected = [whole.step(one) for one in rounds]
    got = [first.step(one) for one in rounds[:3]]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert got + [second.step(one) for one in rounds[3:]] == expected
    before = json.dumps(second.state_dict())
    assert second.step([math.nan, 0.0, 0.0]) is None
    assert json.dumps(second.state_dict()) == before
    other = Exp3() if isinstance(settings, Exponentiated) else Exponentiated()
    with pytest.raises(ValueError, match="of another rule"):
        second.load_state_dict(other.started(PRIOR).state_dict())
    with pytest.raises(ValueError, match="of 2 datasets, not 3"):
        second.load_state_dict(settings.started([0.5, 0.5]).state_dict())


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
    assert rewards.inner_products(table).tolist() == pytest.approx(expected, abs=1e-6)


def test_rivals_move_a_mixture_in_a_balancer():
    for reward, rule in ((rewards.inner_products, Exponentiated()), (rewards.training_losses, Exp3())):
        mixture = Mixture({"a": 0.2, "b": 0.8})
        train, dev = batches(("a", "b"), 1), batches(("x",), 1, seed=1)
        balancer = Balancer(mixture, mlp(), loss, train=train, dev=dev, every=1, reward=reward, scorer=rule, sketch=64)
        update = balancer.step()
        assert update.skipped is None
        assert update.mixture != {"a": 0.2, "b": 0.8}
        if isinstance(rule, Exp3):
            assert update.rewards == pytest.approx(update.train_losses)
