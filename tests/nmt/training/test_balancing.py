"""The balancer of a training, by several processes."""

import contextlib
import os

import pytest
from conftest import ROOT
from ranks import run_on_ranks
from toy_runs import Silent, small_config

from multidds import Mixture
from multidds.balancer import pace
from multidds.history import moments_of
from multidds.nmt.batches import Sentences
from multidds.nmt.config.config import load_config
from multidds.nmt.config.config_diff import changed_keys
from multidds.nmt.model.transformer import make_model
from multidds.nmt.prepare import Prepared
from multidds.nmt.training.balancing import make_balancer, planned_pace
from multidds.nmt.training.schedule import planned_sentences
from multidds.nmt.training.train import Training, train


def probed_sets(config, folder):
    """Updates once; returns the (split, pair) whose sentences this process has read."""
    os.chdir(folder)
    prepared = Prepared(config)
    read = set()

    class Spied(Sentences):
        def __init__(self, pair, split):
            super().__init__(prepared, pair, split)
            self.split = split

        def tokens(self, i):
            read.add((self.split, self.name))
            return super().tokens(i)

    def loss(model, parts):
        return sum(model(part, 0.1) for part in parts) / sum(part.tokens for part in parts)

    names = config.data.names
    train, dev = ({name: Spied(name, split) for name in names} for split in ("train", "dev"))
    model = make_model(config, prepared.vocabulary)
    balancer = make_balancer(config, Mixture.uniform(names), model, loss, train, dev, "regular")
    balancer.update()
    return read


def test_no_pair_is_planned_for_more_passes_than_its_repetition_says(corpus, monkeypatch, tmp_path):
    """Few sentences in a long training: the plan goes up to 1 + repetition passes over what counts most."""
    passes = []
    for repetition in (15, 40):
        overrides = (f"mixture.repetition={repetition}", "train.max_steps=2000", "mixture.priority={mirror-base=1}")
        run = Training(small_config(corpus, monkeypatch, *overrides), tmp_path / str(repetition))
        sentences = planned_sentences(run.config, run.data)
        proportional = sentences / run.total
        planned = run.mixture["mirror-base"] * sentences / len(run.data["mirror-base"])
        passes.append((planned, max(1 + repetition, proportional)))
        run.close()
    assert all(planned <= most * (1 + 1e-6) for planned, most in passes)
    assert passes[0] != passes[1]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["learned", "multidds-s"])
def test_processes_divide_the_datasets_and_dev_sets_of_an_update(corpus, monkeypatch, tmp_path, method):
    config = small_config(corpus, monkeypatch, f"mixture.method={method}")
    first, second = run_on_ranks(probed_sets, tmp_path, 2, config, corpus)
    everything = {(split, pair) for split in ("train", "dev") for pair in config.data.names}
    assert first.isdisjoint(second)
    assert first | second == everything


RECIPE = ROOT / "recipes" / "ted-related-m2o.toml"
MANY = [f"l{i:02}-eng" for i in range(40)]


def recipe(*overrides):
    return load_config(RECIPE, overrides)


@pytest.mark.parametrize("steps", [2000, 100_000])
@pytest.mark.parametrize("step_ahead", [0.0, 0.001])
def test_probes_stay_within_their_budget_and_fit_into_the_training(steps, step_ahead):
    chosen = [
        planned_pace(
            recipe("mixture.method=multidds-s", f"mixture.probe_budget={budget}", f"mixture.step_ahead={step_ahead}"),
            steps,
        )
        for budget in (0.01, 0.1, 0.4)
    ]
    for budget, each in zip((0.01, 0.1, 0.4), chosen, strict=True):
        assert each.share <= budget or (each.share <= 0.15 and each.updates <= 11)  # a short training learns, too
        assert 1 <= each.every <= steps
    assert chosen[0].every >= chosen[1].every >= chosen[2].every


def test_without_a_budget_updates_come_at_the_steps_of_the_recipe():
    assert planned_pace(recipe("mixture.probe_budget=0.0", "mixture.every=70"), 7000).every == 70


def test_of_many_pairs_an_update_probes_a_part_if_updates_of_all_would_be_rare():
    def part(budget, *overrides):
        return planned_pace(recipe(f"mixture.probe_budget={budget}", f"data.pairs={MANY}", *overrides), 10_000).part

    datasets, dev_sets = part(0.005)
    assert 1 < datasets < 40
    assert 1 < dev_sets < 40
    assert part(0.5) is None
    assert part(0.005, "mixture.method=multidds", "mixture.step_ahead=0.001") is None


def test_what_a_budget_chooses_does_not_count_as_a_change():
    small, large = recipe("mixture.probe_budget=0.01"), recipe("mixture.probe_budget=0.02")
    assert changed_keys(recipe("mixture.probe_budget=0.01", "mixture.every=7"), small) == []
    assert changed_keys(small, large) == ["mixture.probe_budget"]
    assert "mixture.every" in changed_keys(recipe(), recipe("mixture.every=7"))


def test_an_update_of_a_training_probes_a_part_of_many_pairs(corpus, monkeypatch, tmp_path):
    monkeypatch.setattr(pace, "MIN_SETS", 2)
    settings = ("mixture.probe_budget=0.01", "mixture.method=learned", "train.max_steps=200")
    training = Training(small_config(corpus, monkeypatch, *settings), tmp_path / "run")
    with contextlib.closing(training):
        updates = [training.balancer.update() for _ in range(4)]
    assert {len(update.probed) for update in updates} == {len(update.dev_losses) for update in updates} == {1}
    assert {name for update in updates for name in update.probed} == set(training.data)


@pytest.mark.slow
def test_a_run_that_goes_on_with_more_steps_keeps_its_past(corpus, monkeypatch, tmp_path):
    """The budget of a longer training may choose another pace for the steps to come."""
    settings = ("mixture.probe_budget=0.9", "mixture.method=learned")
    train(small_config(corpus, monkeypatch, *settings, "train.max_steps=40"), tmp_path / "run", Silent())
    before = moments_of(tmp_path / "run")
    assert len(before) > 2
    train(small_config(corpus, monkeypatch, *settings, "train.max_steps=80"), tmp_path / "run", Silent())
    after = moments_of(tmp_path / "run")
    assert after[: len(before)] == before
    assert len(after) > len(before)
