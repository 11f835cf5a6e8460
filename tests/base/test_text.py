"""The lines that people read, and what of a mixture's way is learned."""

import math

import pytest
from multidds.rules.drift import Drift, distance
from toys import batches, loss, mlp

from multidds import Balancer, Exp3, Exponentiated, Mixture, Update
from multidds._base.text import changes, percent, shares
from multidds.rules import Anchored, Scorer


def update(mixture, before, **more):
    given = {"rewards": dict.fromkeys(mixture, 0.1), "dev_losses": {}, "train_losses": {}, "weights": {}}
    facts = {"alignment": None, "seconds": 0.1, "before": before, "prior": before}
    return Update(step=500, mixture=mixture, **given | facts | more)


def test_per_cents_have_the_digits_that_the_smallest_needs():
    assert percent(0.8, 0.671) == ["80", "67"]
    assert percent(0.012, 0.004) == ["1.2", "0.4"]
    assert percent(1e-4, 1.4e-4) == ["0.01", "0.01"]
    assert percent(0.0, 0.5) == ["0", "50"]


def test_an_update_is_one_line_on_a_console_and_one_in_a_debugger():
    found = update(
        {"python": 0.67, "markdown": 0.25, "sql": 0.08}, {"python": 0.8, "markdown": 0.16, "sql": 0.04}, signal=0.93,
        drift=0.131, learned=0.1,
    )  # fmt: skip
    assert str(found) == "step 500  python 80→67%  markdown 16→25%  sql 4→8%"
    assert repr(found) == f"Update({found}; signal 0.93; 0.13 from the prior, 0.10 of it learned)"


def test_an_update_that_moved_nothing_says_so_and_why():
    same = {"a": 0.7, "b": 0.3}
    assert str(update(same, same)) == "step 500  unchanged: a 70%, b 30%"
    assert str(update(same, {})) == "step 500  a 70%, b 30%"
    assert str(update(same, same, skipped="the loss is NaN")) == "step 500  no update: the loss is NaN"


def test_of_ten_thousand_datasets_a_line_and_a_log_have_the_top_movers():
    names = [f"d{i:05}" for i in range(10_000)]
    before = dict.fromkeys(names, 1e-4)
    after = before | {names[7]: 3e-4, names[9]: 0.5e-4}
    found = update(after, before, dev_losses=dict.fromkeys(names, 1.0))
    assert str(found) == "step 500  d00007 0.01→0.03%  d00009 0.010→0.005%"
    assert len(repr(found)) < 120
    flat = found.scalars(passes=dict.fromkeys(names, 1.0))
    assert len(flat) == 4 * 64 + 3
    assert flat["mixture/d00007"] == 3e-4
    assert "reward/d00009" in flat
    assert "passes/d00009" in flat


def test_names_of_dev_sets_are_all_there_whatever_the_datasets_are_called():
    found = update({"a": 0.5, "b": 0.5}, {"a": 0.4, "b": 0.6}, dev_losses={"a": 1.0, "x": 2.0})
    assert {key for key in found.scalars() if key.startswith("dev_loss/")} == {"dev_loss/a", "dev_loss/x"}


def test_shares_and_changes_are_the_largest_first():
    assert shares({"a": 0.1, "b": 0.6, "c": 0.3}, most=2) == "b 60%, c 30%, 1 more"
    assert changes({"a": 0.1, "b": 0.9}, {"a": 0.3, "b": 0.7}, most=1) == ["b 70→90%"]


def balancer_of(**options):
    names = ("a", "b")
    return Balancer(
        Mixture({"a": 0.9, "b": 0.1}), mlp(), loss, train=batches(names, 4), dev=batches(("x",), 4, seed=1), every=1,
        **options,
    )  # fmt: skip


def test_a_balancer_shows_itself_in_a_line():
    balancer = balancer_of(scorer=Anchored(strength=0.0))
    assert repr(balancer) == "Balancer(step 0, an update at every step; 2 datasets: a 90%, b 10%)"
    balancer.every = 1000
    balancer.step()
    balancer.freeze()
    assert repr(balancer) == "Balancer(frozen at step 1, an update every 1,000; 2 datasets: a 90%, b 10%)"


# ----------------------------------------------------------------------------------------------- learning or drift


def test_without_differences_between_rewards_nothing_is_learned():
    for rule in (Scorer(lr=1.0), Exponentiated(), Exp3(), Anchored()):
        balancer = balancer_of(reward=lambda alignment, weights: weights.new_full((2,), 0.3), sketch=8, scorer=rule)
        found = [balancer.step() for _ in range(3)][-1]
        assert found.learned == pytest.approx(0, abs=1e-12), rule
        assert found.unlearned == pytest.approx(found.drift, abs=1e-12)
        assert (found.drift > 0.01) == isinstance(rule, Scorer | Exp3)  # these drift towards uniform by themselves


def test_the_drift_of_the_papers_rule_is_its_formula_with_equal_rewards():
    prior, drift = [0.7, 0.2, 0.1], Drift(Scorer(lr=0.5, floor=0).started([0.7, 0.2, 0.1]), [0.7, 0.2, 0.1])
    logits = [math.log(p) for p in prior]
    for rewards in ([0.9, 0.3, 0.0], [0.1, 0.1, 0.7]):
        drift.step(rewards)
        scale = sum(math.exp(x) for x in logits)
        mean = sum(rewards) / 3
        logits = [x + 0.5 * mean * (1 - 3 * math.exp(x) / scale) for x in logits]
    scale = sum(math.exp(x) for x in logits)
    assert drift.mixture == pytest.approx([math.exp(x) / scale for x in logits])
    assert distance([0.7, 0.2, 0.1], [0.5, 0.2, 0.3]) == pytest.approx(0.2)


def test_the_plan_of_the_default_is_told_apart_from_what_it_learns():
    balancer = balancer_of(sizes={"a": 900, "b": 100}, examples=100)
    found = balancer.step()
    assert found.prior == {"a": 0.9, "b": 0.1}
    assert found.unlearned == pytest.approx(distance([0.9, 0.1], list(balancer.start.values())))
    assert found.before == balancer.start


def test_learning_and_drift_go_on_exactly_after_a_resume():
    one, other = balancer_of(scorer=Scorer(lr=1.0)), balancer_of(scorer=Scorer(lr=1.0))
    one.step()
    state = one.state_dict()
    other.load_state_dict(state)
    assert (first := one.step()).facts() == other.step().facts()
    assert first.unlearned > 0
    without = {key: value for key, value in state.items() if key != "drift"}
    balancer_of(scorer=Scorer(lr=1.0)).load_state_dict(without)  # of an older version
    with pytest.raises(ValueError, match="Balancer: drift: .*mixture"):
        other.load_state_dict(state | {"drift": {"mixture": "x", "rule": {}}})
