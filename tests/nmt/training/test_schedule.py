import contextlib
import json

import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from made_runs import read_lines
from toy_runs import Silent, small_config

from multidds._base.errors import UserError
from multidds.nmt.config.config import load_config
from multidds.nmt.config.config_diff import changed_keys
from multidds.nmt.training import length
from multidds.nmt.training.length import (
    LARGEST,
    SMALLEST,
    in_parts,
    learning_rate,
    probe_passes,
    probe_share,
    within_budget,
)
from multidds.nmt.training.train import Training, train

RECIPE = ROOT / "recipes" / "ted-related-m2o.toml"


def config_with(budget, *overrides):
    return load_config(RECIPE, [f"mixture.probe_budget={budget}", *overrides])


@given(
    budget=st.floats(0.001, 0.5),
    steps=st.integers(1, 10**6),
    batches=st.integers(1, 4),
    step_ahead=st.sampled_from([0.0, 0.001]),
)
def test_probes_stay_within_their_budget_and_fit_into_the_training(budget, steps, batches, step_ahead):
    config = config_with(budget, f"mixture.probe_batches={batches}", f"mixture.step_ahead={step_ahead}")
    try:
        chosen = within_budget(config, steps)
    except UserError as error:
        # Only where not even one of the smallest updates fits.
        assert "is too small" in str(error)
        assert probe_passes(config) * SMALLEST > budget * config.train.tokens * (steps - 1)
        return
    assert probe_share(chosen) <= budget * (1 + 1e-9)
    assert SMALLEST <= chosen.mixture.probe_tokens <= LARGEST
    assert chosen.mixture.every <= steps
    # One step less between updates would be too often.
    assert chosen.mixture.every == 1 or probe_share(chosen) * chosen.mixture.every / (chosen.mixture.every - 1) > budget


def test_the_papers_training_gets_large_probes_and_a_short_one_small_ones():
    long, short = (within_budget(config_with(0.01), steps).mixture for steps in (100_000, 2000))
    assert (long.probe_tokens, long.every) == (4000, 667)
    assert (short.probe_tokens, short.every) == (1000, 167)


def test_without_a_budget_or_a_learned_mixture_nothing_is_chosen():
    for config in (config_with(0.0), config_with(0.1, "mixture.method=static")):
        assert within_budget(config, 1000) is config


@pytest.mark.slow
def test_a_run_that_goes_on_keeps_what_was_chosen(corpus, monkeypatch, tmp_path):
    """Also where its training has grown, for which a new choice would be another one."""
    overrides = ("mixture.probe_budget=0.9", "train.tokens=2000", "train.batch_tokens=2000")
    config = small_config(corpus, monkeypatch, *overrides, "train.max_steps=40")
    train(config, tmp_path / "run", Silent())
    facts = json.loads((tmp_path / "run" / "config.json").read_text())["config"]["mixture"]
    records = read_lines(tmp_path / "run")
    assert [record["step"] for record in records if record["kind"] == "update"][:2] == [
        facts["every"],
        2 * facts["every"],
    ]
    assert (facts["every"], facts["probe_tokens"]) != (config.mixture.every, config.mixture.probe_tokens)
    longer = small_config(corpus, monkeypatch, *overrides, "train.max_steps=44")
    train(longer, tmp_path / "run", Silent())
    again = json.loads((tmp_path / "run" / "config.json").read_text())["config"]["mixture"]
    assert again == facts


def test_what_a_budget_has_chosen_does_not_count_as_a_change():
    config = config_with(0.01)
    assert changed_keys(within_budget(config, 100_000), config) == []
    assert changed_keys(within_budget(config, 100_000), config_with(0.02)) != []
    assert "mixture.every" in changed_keys(config_with(0.0), config_with(0.0, "mixture.every=7"))


def test_the_learning_rate_warms_up_and_falls_with_the_root_of_the_step():
    rates = [learning_rate(2e-4, 4000, 1e-7, step) for step in (1, 2000, 4000, 16000)]
    assert rates == pytest.approx([1e-7 + (2e-4 - 1e-7) / 4000, (2e-4 + 1e-7) / 2, 2e-4, 1e-4])
    assert learning_rate(1e-3, 0, 0.0, 4) == pytest.approx(5e-4)


PAIRS = [f"l{i:02}-eng" for i in range(40)]


def many_pairs(budget, *overrides):
    path = ROOT / "recipes" / "ted-related-m2o.toml"
    return load_config(path, [f"mixture.probe_budget={budget}", f"data.pairs={PAIRS}", *overrides])


def test_of_many_pairs_an_update_probes_a_part_if_updates_of_all_would_be_rare():
    config = within_budget(many_pairs(0.01), 20_000)
    assert in_parts(config)
    assert config.mixture.every == 400
    assert probe_share(config) == 0.01
    assert probe_passes(config) == int(0.01 * config.train.tokens / 4000 * 400)
    assert not in_parts(within_budget(many_pairs(0.3), 20_000))
    assert not in_parts(within_budget(many_pairs(0.9, "mixture.step_ahead=0.001"), 20_000))
    few = load_config(ROOT / "recipes" / "ted-related-m2o.toml", ["mixture.probe_budget=0.001"])
    assert not in_parts(within_budget(few, 20_000))


def test_a_budget_too_small_for_a_part_is_one_sentence():
    with pytest.raises(UserError, match=r"probe_budget = 0.0001 is too small: .* 25,000 steps"):
        within_budget(many_pairs(0.0001), 20_000)


def test_an_update_of_a_training_probes_many_pairs_by_mixed_batches(corpus, monkeypatch, tmp_path):
    monkeypatch.setattr(length, "ALL_PAIRS", 1)
    monkeypatch.setattr(length, "LEAST_BATCHES", 2)
    overrides = ("mixture.probe_budget=0.2", "train.max_steps=400", "train.tokens=2000", "train.batch_tokens=2000")
    training = Training(small_config(corpus, monkeypatch, *overrides, "mixture.method=learned"), tmp_path / "run")
    with contextlib.closing(training):
        assert in_parts(training.config)
        update = training.balancer.update()
    assert update.skipped is None
    assert set(update.rewards) == set(training.data)
    assert set(update.train_losses) == set(update.probed)
