import json
import math

import pytest
import torch
from assertions import assert_resumes_exactly
from hypothesis import given
from hypothesis import strategies as st
from reference import scorer_step, softmax

from multidds.rules import Scorer
from multidds.rules.scorer import raised_to

PRIORS = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=8).map(lambda ws: [w / math.fsum(ws) for w in ws])


def started(prior, **kwargs):
    return Scorer(**kwargs).started(prior)


@given(PRIORS, st.integers(0, 2**31), st.sampled_from(["sum", "policy"]))
def test_a_step_is_the_papers_update(prior, seed, rule):
    reward = (torch.rand(len(prior), generator=torch.Generator().manual_seed(seed)) * 2 - 1).tolist()
    scorer = started(prior, lr=0.3, rule=rule, floor=0)
    psi = scorer_step(
        dict(enumerate(math.log(p) for p in prior)), dict(enumerate(reward)), 0.3, weighted_by_p=rule == "policy"
    )
    assert scorer.step(reward) == pytest.approx(list(softmax(psi).values()), abs=1e-12)


@pytest.mark.claim("The method", "the gradient of the rule is that of autograd")
@given(PRIORS, st.integers(0, 2**31))
def test_the_gradient_is_that_of_autograd(prior, seed):
    reward = torch.randn(len(prior), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    psi = torch.tensor(prior, dtype=torch.float64).log().requires_grad_()
    for rule, objective in (
        ("sum", (reward * psi.log_softmax(0)).sum()),
        ("policy", (reward * psi.softmax(0)).sum()),
    ):
        (expected,) = torch.autograd.grad(objective, psi)
        scorer = started(prior, lr=1.0, rule=rule, floor=0)
        scorer.step(reward.tolist())
        assert torch.allclose(scorer.values - psi.detach(), expected, atol=1e-12)


@pytest.mark.claim("The method", "P = R / ΣR; drift to uniform; negative rewards; ΣR < 0")
def test_constant_positive_rewards_lead_to_rewards_over_their_sum():
    reward = [0.1, 0.2, 0.5]
    scorer = started([0.8, 0.15, 0.05], lr=0.5, floor=0)
    for _ in range(500):
        p = scorer.step(reward)
    assert p == pytest.approx([0.125, 0.25, 0.625], abs=1e-9)


def test_equal_rewards_drift_under_the_sum_rule_and_stay_under_policy():
    prior = [0.7, 0.2, 0.1]
    drifting, staying = started(prior, lr=0.5), started(prior, lr=0.5, rule="policy")
    for _ in range(500):
        drifted, stayed = drifting.step([0.3] * 3), staying.step([0.3] * 3)
    assert drifted == pytest.approx([1 / 3] * 3, abs=1e-9)
    assert stayed == pytest.approx(prior, abs=1e-9)


def test_unequal_rewards_lead_to_the_best_dataset_under_policy():
    scorer = started([0.6, 0.3, 0.1], lr=5, rule="policy", floor=0)
    for _ in range(3000):
        p = scorer.step([0.2, 0.3, 0.4])
    assert p[2] > 0.99


def test_a_negative_reward_drives_its_probability_to_zero():
    scorer = started([0.25] * 4, lr=0.2, floor=0)
    for _ in range(20000):
        p = scorer.step([0.5, 0.3, 0.2, -0.1])
    total, share = 0.9, 0.1 / 3
    expected = [(r - share) / total for r in (0.5, 0.3, 0.2)]
    assert p[3] < 1e-4
    assert p[:3] == pytest.approx(expected, abs=1e-3)


def test_with_a_negative_sum_of_rewards_the_start_decides():
    winners = []
    for prior in ([0.6, 0.4], [0.4, 0.6]):
        scorer = started(prior, lr=0.2, floor=0)
        for _ in range(2000):
            p = scorer.step([-0.3, -0.3])
        winners.append(p.index(max(p)))
        assert max(p) > 0.99
    assert winners == [0, 1]


@pytest.mark.claim("The method", "the authors' setting moves a logit by at most 0.02")
def test_the_authors_setting_moves_a_logit_by_at_most_two_hundredths():
    authors = Scorer.authors().started([0.5, 0.3, 0.2])
    before = authors.values.clone()
    authors.step([0.9, 0.1, 0.1])
    moved = (authors.values - before).abs()
    assert moved.max() <= 0.02 + 1e-9
    assert moved.min() > 0.0195
    assert (Scorer.authors().inner_steps, Scorer.authors().floor, Scorer().inner_steps) == (200, 0.0, 1)


def test_the_authors_setting_is_nearly_a_sign_rule():
    moves = []
    for size in (1.0, 0.01):
        scorer = Scorer.authors().started([0.25, 0.25, 0.25, 0.25])
        before = scorer.values.clone()
        scorer.step([0.4 * size, 0.1 * size, 0.1 * size, 0.1 * size])
        moves.append(scorer.values - before)
    assert torch.allclose(moves[0], moves[1], atol=1e-3)


@given(PRIORS, st.floats(0.01, 0.99), st.lists(st.floats(-1, 1), min_size=8, max_size=8))
def test_no_probability_falls_below_the_floor(prior, floor, rewards):
    scorer = started(prior, lr=20.0, floor=floor)
    for _ in range(3):
        p = scorer.step(rewards[: len(prior)])
        assert min(p) >= floor * min(prior) * (1 - 1e-12)
        assert math.fsum(p) == pytest.approx(1, abs=1e-12)
        assert scorer.values.tolist() == torch.tensor(p, dtype=torch.float64).log().tolist()


def test_raising_to_the_floor_rescales_only_the_others():
    raised = raised_to(torch.tensor([0.0, 0.21, 0.79], dtype=torch.float64), 0.2)
    assert raised.tolist() == pytest.approx([0.2, 0.2, 0.6])
    raised = raised_to(torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64), 0.2)
    assert raised.tolist() == pytest.approx([0.2, 0.3 * 0.8 / 0.9, 0.6 * 0.8 / 0.9])


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.NAdam, torch.optim.RMSprop])
def test_any_torch_optimizer_resumes_exactly_through_json(optimizer):
    def make():
        scorer = started([0.5, 0.3, 0.2], optimizer=optimizer)
        return {"scorer": scorer}, lambda _: scorer.step([0.3, -0.1, 0.7])

    assert_resumes_exactly(make, 6, as_json=True)


def test_a_step_that_would_not_be_finite_changes_nothing():
    scorer = started([0.5, 0.5], optimizer=torch.optim.Adam)
    scorer.step([0.1, 0.2])
    before = json.dumps(scorer.state_dict())
    assert scorer.step([math.inf, 0.0]) is None
    assert scorer.step([math.nan, 0.0]) is None
    assert json.dumps(scorer.state_dict()) == before


def test_a_step_in_inference_mode_does_not_hurt_the_next_one():
    with torch.inference_mode():
        scorer = started([0.5, 0.5], optimizer=torch.optim.Adam)
        scorer.step([0.1, 0.2])
    assert scorer.step([0.1, 0.2]) is not None


def test_the_state_of_another_optimizer_or_number_of_datasets_is_refused():
    state = started([0.5, 0.5], optimizer=torch.optim.Adam).state_dict()
    with pytest.raises(ValueError, match="the state is of the optimizer Adam, but this one has SGD"):
        started([0.5, 0.5]).load_state_dict(state)
    with pytest.raises(ValueError, match="the state has 2 logits, but there are 3"):
        started([0.5, 0.25, 0.25], optimizer=torch.optim.Adam).load_state_dict(state)


def test_a_scorer_is_settings_that_can_be_shared_compared_and_printed():
    shared = Scorer(lr=0.3)
    one, other = shared.started([0.5, 0.5]), shared.started([0.9, 0.1])
    one.step([1.0, 0.0])
    assert other.values.exp().tolist() == pytest.approx([0.9, 0.1])
    assert shared == Scorer(lr=0.3)
    assert "lr=0.3" in repr(shared)
    with pytest.raises(AttributeError):
        shared.lr = 1.0


def test_an_optimizer_that_is_none_is_refused():
    with pytest.raises(
        TypeError, match="optimizer must be a torch optimizer class, such as torch.optim.SGD, got 'adam'"
    ):
        Scorer(optimizer="adam")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scorer(lr=0), "lr must be positive"),
        (lambda: Scorer(lr=math.nan), "lr must be positive"),
        (lambda: Scorer(inner_steps=0), "inner_steps must be a whole number of at least 1, but it is 0"),
        (lambda: Scorer(rule="max"), "rule must be 'sum' or 'policy', but it is 'max'"),
        (lambda: Scorer(floor=-0.1), "floor must be a share of the smallest prior"),
        (lambda: started([0.5, 0.5], floor=1.0), "it must be below 0.5"),
    ],
)
def test_a_bad_scorer_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
