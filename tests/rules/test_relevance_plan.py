"""The default rule: where it starts, what evidence moves, what it notes, and its state."""

import json
import math

import numpy as np
import pytest
from toy_rules import updated

from multidds import Mixture
from multidds.rules import RelevancePlan, Training
from multidds.rules.relevance_plan import repetition_of

SIZES = {"goal": 150, "near": 6000, "far": 8000, "noise": 4000}
DRAWS = 6400
GOAL = {"goal": 0.5, "near": 0.4, "far": 0.02, "noise": -0.05}


def training(dev=("goal",), weights=None, sizes=SIZES, draws=DRAWS, prior=None):
    prior = prior or Mixture.proportional(SIZES).probabilities
    return Training(prior, weights or {name: 1 / len(dev) for name in dev}, sizes, draws)


def learned(start, updates=10, rows=None, weights=None):
    """The mixture after so many updates that find the same."""
    state = RelevancePlan().start(start)
    for _ in range(updates):
        updated(state, rows or {"goal": GOAL}, weights=weights)
    return state.mixture


def distance(one, other):
    """The total variation."""
    return sum(abs(one[name] - other[name]) for name in SIZES) / 2


# ----------------------------------------------------------------------------------------------------- the mixture


@pytest.mark.claim(
    "The method", "without evidence the mixture is the plan by names, and evidence moves it as far as it goes"
)
def test_before_any_evidence_the_mixture_is_the_plan_by_names():
    names = tuple(SIZES)
    state = RelevancePlan().start(training(names))
    assert state.mixture == pytest.approx(Mixture.planned(SIZES, DRAWS).probabilities)
    assert math.isnan(state.signal)
    updated(state, {name: dict.fromkeys(SIZES, 0.01) for name in names}, error=0.1)  # noise
    assert state.mixture == pytest.approx(Mixture.planned(SIZES, DRAWS).probabilities)
    assert state.signal == 0


def test_without_sizes_or_length_the_given_mixture_is_the_start():
    prior = {"goal": 0.1, "near": 0.2, "far": 0.3, "noise": 0.4}
    for start in (training(sizes=None, prior=prior), training(draws=None, prior=prior)):
        assert RelevancePlan().start(start).mixture == prior
        moved = learned(start)
        assert moved["near"] > 0.3
        assert moved["noise"] < 0.05


def test_without_a_plan_the_given_mixture_is_the_start_and_nothing_is_repeated():
    start = training()
    assert RelevancePlan(plan=False).start(start).mixture == start.prior
    assert RelevancePlan().start(start).mixture != start.prior


def test_relevant_datasets_are_drawn_and_others_keep_the_floor():
    moved = learned(training())
    assert moved["near"] > 0.4
    assert moved["far"] < 0.1
    assert moved["noise"] == pytest.approx(0.1 * SIZES["noise"] / sum(SIZES.values()), rel=0.01)


@pytest.mark.claim("The method", "one goal said in three ways gives one mixture")
def test_one_goal_said_in_three_ways_gives_one_plan():
    """One dev set; all dev sets with one that counts; the same dev set under a name of its own."""
    others = {name: dict.fromkeys(SIZES, 0.1) for name in ("near", "far")}
    only = {"goal": 1.0, "near": 0.0, "far": 0.0}
    ways = [
        learned(training()),
        learned(training(weights=only), rows={"goal": GOAL, **others}, weights=only),
        learned(training(("prose",)), rows={"prose": GOAL}),
    ]
    for one in ways:
        for other in ways:
            assert distance(one, other) < 0.1
        assert one["goal"] * DRAWS / SIZES["goal"] <= 16 + 1e-6


def test_dev_sets_of_weight_zero_do_not_count():
    rows = {"goal": GOAL, "other": {"goal": 0.0, "near": 0.0, "far": 0.9, "noise": 0.0}}
    weights = {"goal": 1.0, "other": 0.0}
    moved = learned(training(weights=weights), rows=rows, weights=weights)
    assert moved == pytest.approx(learned(training()), abs=1e-6)


def test_a_dataset_with_a_memorised_loss_gives_way():
    state = RelevancePlan().start(training())
    updated(state, {"goal": GOAL})
    fresh = state.mixture
    losses = {"train": {"goal": 1.0}, "dev": {"goal": 3.0}}
    for _ in range(5):
        updated(state, {"goal": GOAL}, losses=losses, passes={"goal": 8.0})
    assert state.mixture["goal"] < fresh["goal"] / 2


def test_the_order_of_names_changes_nothing():
    turned = dict(reversed(SIZES.items()))
    start = training(sizes=turned, prior=dict(reversed(Mixture.proportional(SIZES).probabilities.items())))
    assert learned(start, rows={"goal": dict(reversed(GOAL.items()))}) == learned(training())


def test_rewards_are_mean_cosines_and_relevance_is_of_pairs():
    rows = {"goal": GOAL, "near": {"goal": 0.1, "near": 0.3, "far": 0.2, "noise": 0.0}}
    state = RelevancePlan().start(training(tuple(rows)))
    findings = updated(state, rows)
    assert findings.rewards == pytest.approx({name: (GOAL[name] + rows["near"][name]) / 2 for name in SIZES})
    assert set(findings.errors) == set(SIZES)
    assert 0 < state.signal < 1
    relevance = state.relevance()
    assert relevance.keys() == rows.keys()
    assert relevance["goal"]["goal"][0] == 1.0  # of the best dataset
    assert relevance["goal"]["noise"][0] < 0  # of less use than the average one


def test_very_many_pairs_are_kept_per_dataset():
    names = [f"d{i:03}" for i in range(300)]
    weights = dict.fromkeys(names, 1 / 300)
    state = RelevancePlan().start(Training(weights, weights, dict.fromkeys(names, 100.0), 1e4))
    row = dict.fromkeys(names, 0.1) | {"d000": -0.2, "d001": 0.3}
    updated(state, dict.fromkeys(names, row), error=0.001)
    assert state.mixture["d000"] < state.mixture["d002"] < state.mixture["d001"]
    assert state.relevance() is None
    assert 0 < state.signal < 1


# ------------------------------------------------------------------------------------------------ repeated data


def test_a_dataset_that_is_held_at_a_limit_of_passes_is_named():
    rows = {"goal": {**GOAL, "near": 0.05}}
    state = RelevancePlan(repetition=15).start(training())
    assert updated(state, rows).notes == ("goal: held at 16 passes",)
    assert state.mixture["goal"] * DRAWS / SIZES["goal"] == pytest.approx(16)
    assert state.held() == {"goal": pytest.approx(16)}
    assert updated(RelevancePlan(repetition=60).start(training()), rows).notes == ()


def test_the_worth_of_one_more_pass_is_that_of_the_last_four_updates():
    """Cosines of unit gradients: t . d is the cosine, and |d|^2 is 1."""
    state, seen = RelevancePlan().start(training()), [0.9, 0.8, 0.5, 0.3, 0.2, 0.4]
    for number, worth in enumerate(seen):
        updated(state, {"goal": {**GOAL, "goal": worth}})
        last = seen[max(0, number - 3) : number + 1]
        (found, error) = state.worth()["goal"]
        assert found == pytest.approx(sum(last) / len(last))
        if len(last) == 1:
            assert math.isnan(error)
        else:  # of a mean
            assert error == pytest.approx(np.std(last, ddof=1) / len(last) ** 0.5)
    assert set(state.worth()) == {"goal"}  # the others have no dev set of their name


@pytest.mark.parametrize(
    ("worth", "passes", "note"),
    [
        (0.05, 8.0, "goal has had enough: 8 passes, one more is worth 0.05 ± 0.01 of new text"),
        (-0.3, 8.0, "goal is harmed by more: one more pass is worth -0.30 ± 0.01 of new text"),
        (0.05, 0.5, None),  # before the end of a pass nothing was repeated
        (0.5, 8.0, None),
    ],
)
def test_a_dataset_of_which_one_more_pass_is_of_no_use_is_named(worth, passes, note):
    state = RelevancePlan(repetition=60).start(training())
    for change in (-0.002, 0.002):
        notes = updated(state, {"goal": {**GOAL, "goal": worth + change}}, passes={"goal": passes}).notes
    assert [each for each in notes if "one more" in each] == ([note] if note else [])


def test_one_update_does_not_say_that_a_dataset_has_had_enough():
    found = updated(RelevancePlan().start(training()), {"goal": {**GOAL, "goal": -0.5}}, passes={"goal": 8.0})
    assert not [note for note in found.notes if "one more" in note]


@pytest.mark.claim("The method", "the worth of repeated data is measured by the gap between seen and unseen examples")
def test_memorised_data_are_worth_less_and_data_that_generalise_more():
    big, small, other = repetition_of(np.array([0.05, 2.0, 0.0]), np.array([1.0, 10.0, 0.0]))
    assert small < other < 15
    assert small < 5
    assert big < 15
    assert repetition_of(np.zeros(3), np.array([30.0, 60.0, 0.0]))[2] > 30


def test_the_prior_of_repetition_is_fifteen_passes_and_data_that_agree_keep_it():
    assert repetition_of(np.zeros(3), np.zeros(3)) == pytest.approx(15.0)
    assert repetition_of(np.array([0.2, 0.4, 0.0]), np.array([15.0, 30.0, 0.0])) == pytest.approx(15.0)


def test_the_repetition_of_a_dataset_is_shrunk_towards_the_common_value():
    common = repetition_of(np.array([1.0, 1.0]), np.array([10.0, 10.0]))
    apart = repetition_of(np.array([0.0, 2.0]), np.array([10.0, 10.0]))
    assert apart[1] < common[1] < apart[0]
    assert apart[0] / apart[1] < 2


def test_repetition_is_measured_on_datasets_that_were_drawn_and_have_a_dev_set_of_their_name():
    rows = {"goal": GOAL, "other": GOAL}
    losses = {"train": {"goal": 1.0, "near": 1.0}, "dev": {"goal": 1.5, "other": 9.0}}
    state = RelevancePlan().start(training(("goal", "other")))
    updated(state, rows, losses=losses, passes={"goal": 0.0, "near": 2.0})
    assert not state.gaps.any()
    updated(state, rows, losses=losses, passes={"goal": 3.0, "near": 2.0})
    gaps = dict(zip(sorted(SIZES), state.gaps.max(axis=0).tolist(), strict=True))
    assert gaps == {"far": 0.0, "goal": 0.5, "near": 0.0, "noise": 0.0}
    assert state.gap_passes.max() == 3.0


def test_repetition_is_that_of_the_last_four_updates():
    """Unseen examples that look easier than seen ones are noise: they count against the others, and not below 0."""
    held = {gap: {"train": {"goal": 1.0}, "dev": {"goal": 1.0 + gap}} for gap in (0.9, 0.4, -0.2, -0.9)}

    def after(*gaps):
        state = RelevancePlan().start(training())
        for gap in gaps:
            updated(state, {"goal": GOAL}, losses=held[gap], passes={"goal": 8.0})
        return state.mixture

    assert after(0.4, 0.4)["goal"] < after(-0.2, -0.2)["goal"]
    assert after(0.9, 0.4, 0.4, 0.4, 0.4) == after(-0.9, 0.4, 0.4, 0.4, 0.4)
    assert after(-0.2, 0.4, 0.4, 0.4)["goal"] > after(0.4, 0.4, 0.4, 0.4)["goal"]
    assert after(-0.9, -0.9) == after(-0.2, -0.2)


# ------------------------------------------------------------------------------------------------ the state


def test_it_resumes_exactly():
    def found(state, number):
        losses = {"train": {"goal": 1.0}, "dev": {"goal": 1.0 + 0.1 * number}}
        row = {**GOAL, "near": 0.1 * number}
        return updated(state, {"goal": row}, losses=losses, passes={"goal": 1.0 + number}), state.mixture

    whole, other = (RelevancePlan().start(training()) for _ in range(2))
    for number in range(3):
        found(whole, number)
    other.load_state_dict(json.loads(json.dumps(whole.state_dict())), {})
    for number in range(3, 9):
        assert found(other, number) == found(whole, number)
        assert other.state_dict() == whole.state_dict()
    assert (other.relevance(), other.worth(), other.signal) == (whole.relevance(), whole.worth(), whole.signal)


def test_states_of_other_datasets_are_refused_and_change_nothing():
    state = RelevancePlan().start(training())
    updated(state, {"goal": GOAL})
    before = state.state_dict()
    other = RelevancePlan().start(Training({"goal": 0.5, "x": 0.5}, {"goal": 1.0}))
    for refused in (other.state_dict(), {"rule": "Logits"}, {**before, "gaps": [math.nan] * 4}):
        with pytest.raises(ValueError, match="PlanState"):
            state.load_state_dict(refused, {})
        assert state.state_dict() == before


@pytest.mark.parametrize("repetition", [0, -1.0, math.nan])
def test_a_repetition_that_cannot_be_is_refused(repetition):
    with pytest.raises(ValueError, match=f"repetition.*{repetition}"):
        RelevancePlan(repetition=repetition)
