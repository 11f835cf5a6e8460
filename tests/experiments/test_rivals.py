"""Rules of other papers, written with the public interface alone (experiments/rivals/rivals.py)."""

import inspect
import math
from statistics import pstdev

import pytest
import rivals
import torch
from assertions import assert_order_invariant, assert_resumes_exactly
from hypothesis import given
from hypothesis import strategies as st
from rivals import Doge, MirrorAscent, OnlineDataMixing, constant, exponentiated
from toy_balancers import DEV, NAMES, balancer_of
from toys import batches, dataset, loss, mlp, train_step

from multidds import Mixture, Probes, batches_of, reference
from multidds.rules import Scorer

pytestmark = [pytest.mark.claim("The method", "DoGE and Online Data Mixing follow their formulas")]

PRIOR = {"a": 0.1, "b": 0.2, "c": 0.7}
RULES = {
    "doge": Doge(lr=2.0),
    "odm": OnlineDataMixing(smoothing=0.8),
    "mirror ascent": MirrorAscent(),
    "constant": Scorer(constant),
}


def trained(rule, steps=5, model=None, **sets):
    """The updates of a training, one after every step."""
    model, mixture = model or mlp(), Mixture(PRIOR)
    balancer = balancer_of(model, mixture=mixture, rule=rule, **sets)
    for number in range(steps):
        train_step(model, number)
        balancer.step()
    assert mixture.probabilities == balancer.history[-1].mixture
    return balancer.history


# ------------------------------------------------------------------------------------------------ closed forms


@given(st.lists(st.lists(st.floats(-2, 2), min_size=3, max_size=3), min_size=1, max_size=5))
def test_exponentiated_steps_multiply(rounds):
    moved = PRIOR
    for rewards in rounds:
        moved = exponentiated(moved, dict(zip(PRIOR, rewards, strict=True)), 0.3, 0.0)
    weights = [p * math.exp(0.3 * sum(one[i] for one in rounds)) for i, p in enumerate(PRIOR.values())]
    assert list(moved.values()) == pytest.approx([w / sum(weights) for w in weights])


def test_no_share_falls_below_the_floor():
    moved = PRIOR
    for _ in range(100):
        moved = exponentiated(moved, {"a": 1.0, "b": 0.0, "c": 0.0}, 1.0, 0.01)
    assert list(moved.values()) == pytest.approx([0.98, 0.01, 0.01], rel=0.02)


@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_the_reward_of_doge_is_the_inner_product_of_clipped_gradients(scale):
    """Gradients shorter than 1 are not made longer."""

    def scaled(model, batch):
        return scale * loss(model, batch)

    def clipped(batch):
        flat = reference.gradient(model, scaled, [batch])
        return flat / max(1.0, float(flat.norm()))

    model, train, dev = mlp(), batches(NAMES), batches(DEV, seed=1)
    mixture = Mixture(PRIOR)
    update = balancer_of(model, train, dev, mixture, scaled, rule=Doge(lr=2.0)).step()
    v = sum(clipped(dev[name][0]) for name in DEV) / 3
    expected = {name: float(clipped(train[name][0]) @ v) for name in NAMES}
    assert update.rewards == pytest.approx(expected, abs=1e-6)
    weights = {name: PRIOR[name] * math.exp(2.0 * expected[name]) for name in NAMES}
    moved = {name: weight / sum(weights.values()) for name, weight in weights.items()}
    assert mixture.probabilities == pytest.approx(moved, abs=1e-6)


def test_mirror_ascent_follows_mean_cosines_by_their_standard_deviation():
    model, train, dev = mlp(), batches(NAMES, 3), batches(DEV, 3, seed=1)
    mixture, probes, priority = Mixture(PRIOR), Probes(batches=3), {"x": 3.0, "y": 1.0}
    options = {"probes": probes, "priority": priority}
    update = balancer_of(model, train, dev, mixture, rule=MirrorAscent(lr=0.4), **options).step()
    weights = {"x": 0.75, "y": 0.25, "z": 0.0}
    expected = reference.rewards(model, loss, train, dev, weights, stabilized=True)
    assert update.rewards == pytest.approx(expected, abs=1e-6)
    raised = {name: PRIOR[name] * math.exp(0.4 * expected[name] / pstdev(expected.values())) for name in NAMES}
    moved = {name: weight / sum(raised.values()) for name, weight in raised.items()}
    assert mixture.probabilities == pytest.approx(moved, abs=1e-6)


def test_online_data_mixing_is_exp3_on_averaged_losses():
    train = batches(NAMES, 1)
    averages = dict.fromkeys(PRIOR, 0.0)
    for number, update in enumerate(trained(OnlineDataMixing(smoothing=0.8), train=train), start=1):
        assert update.rewards == pytest.approx(update.train_losses)
        averages = {name: 0.8 * a + 0.2 * update.rewards[name] for name, a in averages.items()}
        before = min(1 / 3, math.sqrt(math.log(3) / (3 * max(number - 1, 1))))
        now = min(1 / 3, math.sqrt(math.log(3) / (3 * number)))
        exponents = torch.tensor(list(averages.values()), dtype=torch.float64) * before
        expected = ((1 - 3 * now) * exponents.softmax(0) + now).tolist()
        assert list(update.mixture.values()) == pytest.approx(expected)


def test_online_data_mixing_measures_the_losses_of_training():
    model, train = mlp(), batches(NAMES)
    update = balancer_of(model, train, rule=OnlineDataMixing()).step()
    assert update.rewards == pytest.approx({name: loss(model, train[name][0]).item() for name in NAMES})


def test_constant_rewards_drift_from_the_prior_to_uniform_by_the_papers_rule():
    psi = {name: math.log(p) for name, p in PRIOR.items()}
    for update in trained(Scorer(constant, lr=0.3)):
        psi = reference.scorer_step(psi, dict.fromkeys(NAMES, 1.0), 0.3)
        assert update.mixture == pytest.approx(reference.softmax(psi), abs=1e-9)
        assert update.train_losses == {}  # nothing is measured


# ---------------------------------------------------------------------------------------- what all of them promise


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rival_resumes_exactly(rule):
    def make():
        model = mlp()
        balancer = balancer_of(model, mixture=Mixture(PRIOR), rule=rule)

        def step(number):
            train_step(model, number)
            update = balancer.step()
            return update.mixture, update.rewards

        return {"balancer": balancer, "model": model}, step

    assert_resumes_exactly(make, 6)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_order_of_datasets_does_not_matter(rule):
    def make(names):
        train = {name: batches_of(dataset(30, NAMES.index(name)), 5) for name in names}
        mixture = Mixture({name: PRIOR[name] for name in names})
        balancer = balancer_of(mlp(), train, mixture=mixture, rule=rule)
        return [balancer.step().mixture for _ in range(3)]

    assert_order_invariant(make, NAMES)


@pytest.mark.parametrize("rule", [rule for name, rule in RULES.items() if name != "constant"])
def test_a_rival_skips_an_update_with_a_loss_that_is_not_finite_and_does_not_move(rule):
    balancer = balancer_of(compute=lambda model, batch: loss(model, batch) * math.nan, rule=rule)
    before = balancer.state_dict()
    update = balancer.step()
    assert "is not finite" in update.skipped
    assert balancer.state_dict()["rule"] == before["rule"]
    assert update.mixture == before["mixture"]["probabilities"]


def test_a_rival_refuses_states_that_are_not_its_own():
    for rule in RULES.values():
        balancer = balancer_of(rule=rule)
        before = balancer.state_dict()
        for other in RULES.values():
            if other is not rule:
                with pytest.raises(ValueError, match="rule"):
                    balancer.load_state_dict(balancer_of(rule=other).state_dict())
        assert balancer.state_dict()["rule"] == before["rule"]


@pytest.mark.parametrize(
    "parts",
    [("Doge", "DogeState"), ("MirrorAscent", "MirrorState"), ("OnlineDataMixing", "BanditState"), ("constant",)],
)
def test_a_rival_is_under_forty_lines(parts):
    assert sum(len(inspect.getsource(getattr(rivals, part)).splitlines()) for part in parts) < 40
