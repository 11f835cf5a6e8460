"""The paper's rule: its gradient, its fixed points, its floor, and any torch optimizer."""

import math

import pytest
import torch
from assertions import assert_resumes_exactly
from hypothesis import given
from hypothesis import strategies as st
from toy_rules import OnLists, by_place

from multidds.reference import scorer_step, softmax
from multidds.rules import Cosine, MovingAverage, NotFiniteError, RelevancePlan, Scorer, Training
from multidds.rules.scorer import raised_to

PRIORS = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=8).map(lambda ws: [w / math.fsum(ws) for w in ws])
FIXED_POINTS = "P = R / ΣR; drift to uniform; negative rewards; ΣR < 0"


def scorer(prior, **settings):
    return OnLists(Scorer(**settings), prior)


def after(steps, prior, rewards, **settings):
    """The probabilities after so many steps by the same rewards."""
    rule = scorer(prior, **settings)
    for _ in range(steps):
        found = rule.step(rewards)
    return found


@given(PRIORS, st.integers(0, 2**31), st.sampled_from(["sum", "policy"]))
def test_a_step_is_the_papers_update(prior, seed, rule):
    rewards = (torch.rand(len(prior), generator=torch.Generator().manual_seed(seed)) * 2 - 1).tolist()
    psi = by_place(math.log(p) for p in prior)
    psi = scorer_step(psi, by_place(rewards), 0.3, weighted_by_p=rule == "policy")
    expected = list(softmax(psi).values())
    assert after(1, prior, rewards, lr=0.3, rule=rule, floor=0) == pytest.approx(expected, abs=1e-12)


@pytest.mark.claim("The method", "the gradient of the rule is that of autograd")
@given(PRIORS, st.integers(0, 2**31))
def test_the_gradient_is_that_of_autograd(prior, seed):
    rewards = torch.randn(len(prior), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    psi = torch.tensor(prior, dtype=torch.float64).log().requires_grad_()
    objectives = {"sum": (rewards * psi.log_softmax(0)).sum(), "policy": (rewards * psi.softmax(0)).sum()}
    for rule, objective in objectives.items():
        (expected,) = torch.autograd.grad(objective, psi)
        moved = scorer(prior, lr=1.0, rule=rule, floor=0)
        moved.step(rewards.tolist())
        assert torch.allclose(moved.state.values - psi.detach(), expected, atol=1e-12)


@pytest.mark.claim("The method", FIXED_POINTS)
def test_constant_positive_rewards_lead_to_rewards_over_their_sum():
    found = after(500, [0.8, 0.15, 0.05], [0.1, 0.2, 0.5], lr=0.5, floor=0)
    assert found == pytest.approx([0.125, 0.25, 0.625], abs=1e-9)


@pytest.mark.claim("The method", FIXED_POINTS)
def test_equal_rewards_drift_under_the_sum_rule_and_stay_under_policy():
    prior = [0.7, 0.2, 0.1]
    assert after(500, prior, [0.3] * 3, lr=0.5) == pytest.approx([1 / 3] * 3, abs=1e-9)
    assert after(500, prior, [0.3] * 3, lr=0.5, rule="policy") == pytest.approx(prior, abs=1e-9)


@pytest.mark.claim("The method", FIXED_POINTS)
def test_unequal_rewards_lead_to_the_best_dataset_under_policy():
    assert after(3000, [0.6, 0.3, 0.1], [0.2, 0.3, 0.4], lr=5, rule="policy", floor=0)[2] > 0.99


@pytest.mark.claim("The method", FIXED_POINTS)
def test_a_negative_reward_drives_its_probability_to_zero():
    found = after(20000, [0.25] * 4, [0.5, 0.3, 0.2, -0.1], lr=0.2, floor=0)
    assert found[3] < 1e-4
    assert found[:3] == pytest.approx([(r - 0.1 / 3) / 0.9 for r in (0.5, 0.3, 0.2)], abs=1e-3)


@pytest.mark.claim("The method", FIXED_POINTS)
def test_with_a_negative_sum_of_rewards_the_start_decides():
    for prior in ([0.6, 0.4], [0.4, 0.6]):
        found = after(2000, prior, [-0.3, -0.3], lr=0.2, floor=0)
        assert found[prior.index(0.6)] > 0.99


@pytest.mark.claim("The method", "the authors' setting moves a logit by at most 0.02")
def test_the_authors_setting_moves_a_logit_by_at_most_two_hundredths():
    """It is nearly a sign rule: Adam divides by the size of the rewards."""
    moves = []
    for size in (1.0, 0.01):
        rule = OnLists(Scorer.authors(), [0.5, 0.3, 0.2])
        before = rule.state.values.clone()
        rule.step([0.9 * size, 0.1 * size, 0.1 * size])
        moves.append(rule.state.values - before)
        assert moves[-1].abs().max() <= 0.02 + 1e-9
    assert moves[0].abs().min() > 0.0195
    assert torch.allclose(*moves, atol=1e-3)


@given(PRIORS, st.floats(0.01, 0.99), st.lists(st.floats(-1, 1), min_size=8, max_size=8))
def test_no_probability_falls_below_the_floor(prior, floor, rewards):
    rule = scorer(prior, lr=20.0, floor=floor)
    for _ in range(3):
        p = rule.step(rewards[: len(prior)])
        assert min(p) >= floor * min(prior) * (1 - 1e-12)
        assert math.fsum(p) == pytest.approx(1, abs=1e-12)
        assert rule.state.values.tolist() == torch.tensor(p, dtype=torch.float64).log().tolist()


def test_raising_to_the_floor_rescales_only_the_others():
    raised = raised_to(torch.tensor([0.0, 0.21, 0.79], dtype=torch.float64), 0.2)
    assert raised.tolist() == pytest.approx([0.2, 0.2, 0.6])
    raised = raised_to(torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64), 0.2)
    assert raised.tolist() == pytest.approx([0.2, 0.3 * 0.8 / 0.9, 0.6 * 0.8 / 0.9])


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.NAdam, torch.optim.RMSprop])
def test_any_torch_optimizer_resumes_exactly_through_json(optimizer):
    def make():
        rule = scorer([0.5, 0.3, 0.2], optimizer=optimizer)
        return {"rule": rule}, lambda _: rule.step([0.3, -0.1, 0.7])

    assert_resumes_exactly(make, 6, as_json=True)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_step_that_would_not_be_finite_changes_nothing(bad):
    rule = scorer([0.5, 0.5], optimizer=torch.optim.Adam)
    rule.step([0.1, 0.2])
    before = rule.state_dict()
    with pytest.raises(NotFiniteError, match="no finite probabilities"):
        rule.step([bad, 0.0])
    assert rule.state_dict() == before


def test_a_step_in_inference_mode_does_not_hurt_the_next_one():
    with torch.inference_mode():
        rule = scorer([0.5, 0.5], optimizer=torch.optim.Adam)
        rule.step([0.1, 0.2])
    assert rule.step([0.1, 0.2]) == after(2, [0.5, 0.5], [0.1, 0.2], optimizer=torch.optim.Adam)


def updated(rewards, **settings):
    """What the rule finds with a reward of one's own, and its mixture."""
    state = Scorer(lambda probe, round_: rewards, **settings).start(Training({"a": 0.5, "b": 0.5}))
    return state.update(None, None), state.mixture


def test_rewards_that_do_not_sum_to_more_than_zero_are_noted():
    for values, rule, notes in (((0.1, -0.3), "sum", 1), ((0.1, -0.3), "policy", 0), ((0.1, 0.3), "sum", 0)):
        found, _ = updated(dict(zip("ab", values, strict=True)), rule=rule)
        assert len(found.notes) == notes


def test_a_reward_may_be_a_function_of_ones_own():
    found, mixture = updated({"b": 0.2, "a": 1}, lr=0.5, floor=0)
    assert found.rewards == {"a": 1.0, "b": 0.2}
    psi = scorer_step({"a": math.log(0.5), "b": math.log(0.5)}, {"a": 1.0, "b": 0.2}, 0.5)
    assert mixture == pytest.approx(softmax(psi))


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ({"a": 1.0}, "'b'"),
        ({"a": 1.0, "b": 1.0, "c": 1.0}, "'c'"),
        (None, "NoneType"),
        (3.0, "float"),
    ],
)
def test_a_reward_function_that_gives_no_number_per_dataset_is_an_error(rewards, message):
    with pytest.raises((ValueError, TypeError), match=f"Scorer: the reward.*{message}"):
        updated(rewards)


def test_a_reward_that_is_not_finite_moves_nothing():
    with pytest.raises(NotFiniteError):
        updated({"a": math.nan, "b": 1.0})


def test_states_of_other_rules_optimizers_and_numbers_of_datasets_are_refused():
    rule = scorer([0.5, 0.5])
    rule.step([0.1, 0.2])
    before = rule.state_dict()
    for other, message in (
        (OnLists(RelevancePlan(), [0.5, 0.5]), "'PlanState'.*'Logits'"),
        (scorer([0.5, 0.5], optimizer=torch.optim.Adam), "Adam.*SGD"),
        (scorer([0.5, 0.25, 0.25]), "'logits'.*2.*3"),
        (OnLists(Scorer(MovingAverage()), [0.5, 0.5]), "another reward"),
    ):
        with pytest.raises(ValueError, match=message):
            rule.load_state_dict(other.state_dict())
        assert rule.state_dict() == before


def test_a_scorer_is_settings_that_can_be_shared_compared_and_printed():
    shared = Scorer(lr=0.3)
    one, other = OnLists(shared, [0.5, 0.5]), OnLists(shared, [0.9, 0.1])
    one.step([1.0, 0.0])
    assert other.state.values.exp().tolist() == pytest.approx([0.9, 0.1])
    assert shared == Scorer(lr=0.3)
    assert "lr=0.3" in repr(shared)
    with pytest.raises(AttributeError):
        shared.lr = 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0}, "lr.* 0"),
        ({"lr": math.nan}, "lr.*nan"),
        ({"optimizer": "adam"}, "optimizer.*'adam'"),
        ({"inner_steps": 0}, "inner_steps.* 0"),
        ({"reward": "multidds-s"}, "reward.*'multidds-s'"),
        ({"table": 0}, "table.* 0"),
        ({"table": "big"}, "table.*'big'"),
        ({"table": 64, "reward": Cosine(ahead=0.1)}, "table.*step ahead"),
        ({"table": 64, "reward": MovingAverage()}, "table.*moving averages"),
        ({"rule": "max"}, "rule.*'max'"),
        ({"floor": -0.1}, r"floor.*-0\.1"),
        ({"floor": 1.0}, r"floor 1\.0.*below 0\.5"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises((ValueError, TypeError), match=f"Scorer: .*{message}"):
        scorer([0.5, 0.5], **settings)
