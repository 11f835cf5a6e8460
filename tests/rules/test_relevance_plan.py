import json

import pytest

from multidds import Mixture
from multidds.rules import Evidence, RelevancePlan, Training

SIZES = {"goal": 150, "near": 6000, "far": 8000, "noise": 4000}
DRAWS = 6400


def training(dev=("goal",), weights=None, sizes=SIZES, draws=DRAWS, prior=None):
    prior = prior or Mixture.proportional(SIZES).probabilities
    return Training(prior, weights or {name: 1 / len(dev) for name in dev}, sizes, draws)


def evidence(rows, weights=None, passes=None):
    """rows: {dev set: {dataset: cosine}}"""
    relevance = {dev: {name: (value, 0.02) for name, value in row.items()} for dev, row in rows.items()}
    rewards = dict.fromkeys(SIZES, 0.0)
    return Evidence(
        rewards=rewards,
        relevance=relevance,
        weights=weights or {dev: 1 / len(rows) for dev in rows},
        passes=passes or {},
    )


GOAL = {"goal": 0.5, "near": 0.4, "far": 0.02, "noise": -0.05}


def learned(start, updates=10, rows=None, weights=None):
    state = RelevancePlan().start(start)
    for _ in range(updates):
        found = state.step(evidence(rows or {"goal": GOAL}, weights))
    return found


@pytest.mark.claim(
    "The method", "without evidence the mixture is the plan by names, and evidence moves it as far as it goes"
)
def test_before_any_evidence_the_mixture_is_the_plan_by_names():
    names = tuple(SIZES)
    assert RelevancePlan().start(training(names)).mixture == pytest.approx(Mixture.planned(SIZES, DRAWS).probabilities)


def test_without_sizes_or_length_the_given_mixture_is_the_start():
    prior = {"goal": 0.1, "near": 0.2, "far": 0.3, "noise": 0.4}
    for start in (training(sizes=None, prior=prior), training(draws=None, prior=prior)):
        assert RelevancePlan().start(start).mixture == prior
        moved = learned(start)
        assert moved["near"] > 0.3
        assert moved["noise"] < 0.05


def test_relevant_datasets_are_drawn_and_others_keep_the_floor():
    moved = learned(training())
    assert moved["near"] > 0.4
    assert moved["far"] < 0.1
    assert moved["noise"] == pytest.approx(0.1 * SIZES["noise"] / sum(SIZES.values()), rel=0.01)


@pytest.mark.claim("The method", "one goal said in three ways gives one mixture")
def test_one_wish_said_in_three_ways_gives_one_plan():
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
            assert sum(abs(one[name] - other[name]) for name in SIZES) / 2 < 0.1
        assert one["goal"] * DRAWS / SIZES["goal"] <= 16 + 1e-6


def test_a_dataset_that_is_held_at_a_limit_of_passes_is_named():
    state = RelevancePlan(repetition=15).start(training())
    found = evidence({"goal": {**GOAL, "near": 0.05}})
    assert state.notes(found) == ()
    moved = state.step(found)
    assert moved["goal"] * DRAWS / SIZES["goal"] == pytest.approx(16)
    assert state.notes(found) == ("goal: held at 16 passes",)
    free = RelevancePlan(repetition=60).start(training())
    free.step(found)
    assert free.notes(found) == ()


def test_a_memorised_dataset_gives_way():
    state = RelevancePlan().start(training())
    fresh = state.step(evidence({"goal": GOAL}))
    losses = {"train_losses": {"goal": 1.0}, "dev_losses": {"goal": 3.0}}
    for _ in range(5):
        found = evidence({"goal": GOAL}, passes={"goal": 8.0})
        memorised = state.step(Evidence(**{**vars(found), **losses}))
    assert memorised["goal"] < fresh["goal"] / 2


def test_dev_sets_of_weight_zero_do_not_count():
    rows = {"goal": GOAL, "other": {"goal": 0.0, "near": 0.0, "far": 0.9, "noise": 0.0}}
    weights = {"goal": 1.0, "other": 0.0}
    moved = learned(training(weights=weights), rows=rows, weights=weights)
    assert moved == pytest.approx(learned(training()), abs=1e-6)


def test_rewards_that_are_not_finite_change_nothing():
    state = RelevancePlan().start(training())
    before = state.state_dict()
    found = evidence({"goal": GOAL})
    assert state.step(Evidence(**{**vars(found), "rewards": {"goal": float("nan")}})) is None
    assert state.state_dict() == before


def test_the_order_of_names_changes_nothing():
    turned = dict(reversed(SIZES.items()))
    start = training(sizes=turned, prior=dict(reversed(Mixture.proportional(SIZES).probabilities.items())))
    rows = {"goal": dict(reversed(GOAL.items()))}
    assert learned(start, rows=rows) == learned(training())


def test_a_state_continues_exactly_and_another_rule_is_refused():
    state, other = (RelevancePlan().start(training()) for _ in range(2))
    state.step(evidence({"goal": GOAL}))
    other.load_state_dict(json.loads(json.dumps(state.state_dict())))
    assert other.step(evidence({"goal": GOAL})) == state.step(evidence({"goal": GOAL}))
    with pytest.raises(ValueError, match="scorer"):
        other.load_state_dict({"rule": "scorer"})


def test_very_many_pairs_are_kept_per_dataset():
    names = [f"d{i}" for i in range(300)]
    start = Training(dict.fromkeys(names, 1 / 300), dict.fromkeys(names, 1 / 300), dict.fromkeys(names, 100.0), 1e4)
    state = RelevancePlan().start(start)
    rewards = dict.fromkeys(names, 0.1) | {"d0": -0.2, "d1": 0.3}
    moved = state.step(Evidence(rewards=rewards, weights=dict.fromkeys(names, 1 / 300)))
    assert moved["d0"] < moved["d2"] < moved["d1"]
    assert state.relevance() is None
