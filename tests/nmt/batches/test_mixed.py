"""Probe batches that mix language pairs, and the loss of each sentence."""

import pytest
import torch
from conftest import ROOT
from toy_runs import small_config

from multidds.balancer import arguments as choices
from multidds.balancer import pace
from multidds.nmt.batches.batch import assemble
from multidds.nmt.batches.probe_batches import MixedSentences, collate, sentence_losses, sentences_of
from multidds.nmt.batches.sentences import Sentences
from multidds.nmt.common.errors import UserError
from multidds.nmt.config.config import load_config
from multidds.nmt.prepare import Prepared
from multidds.nmt.training import length as schedule
from multidds.nmt.training.length import in_parts, probe_passes, probe_share, within_budget
from multidds.nmt.training.train import Training

RECIPE = ROOT / "recipes" / "ted-related-m2o.toml"
PAIRS = [f"l{i:02}-eng" for i in range(40)]


@pytest.fixture
def training(corpus, monkeypatch, tmp_path):
    monkeypatch.setattr(schedule, "FEW", 1)
    monkeypatch.setattr(schedule, "LEAST", 2)
    monkeypatch.setattr(choices, "LEAST_SETS", 2)
    monkeypatch.setattr(pace, "LEAST_MIXED", 2)
    monkeypatch.setattr(pace, "USEFUL", 10**6)
    overrides = ("mixture.probe_budget=0.2", "train.max_steps=400", "train.tokens=2000", "train.batch_tokens=2000")
    config = small_config(corpus, monkeypatch, *overrides, "mixture.method=anchored")
    running = Training(config, tmp_path / "run")
    yield running
    running.close()


def test_the_losses_of_sentences_are_those_of_each_alone(corpus, monkeypatch, training):
    config, model = training.config, training.model.eval()
    items = [(data, i) for i in (3, 11, 4) for data in training.data.values()]
    together = sentence_losses(config)(model, collate(items))
    for item, found in zip(items, together.tolist(), strict=True):
        batch = assemble([item])
        alone = model(batch, config.train.label_smoothing) / batch.tokens
        assert found == pytest.approx(alone.item(), rel=1e-5)


def test_a_source_of_sentences_draws_its_pair_only(training):
    data = next(iter(training.data.values()))
    source = MixedSentences(data, 500, sentences_of(training.data.values(), 500))
    drawn = source.examples(torch.Generator().manual_seed(1), 7)
    assert len(drawn) == 7
    assert {sentences for sentences, _ in drawn} == {data}
    assert [i for _, i in drawn] == [i for _, i in source.examples(torch.Generator().manual_seed(1), 7)]
    mean = sum(d.all_tokens / len(d) for d in training.data.values()) / len(training.data)
    assert source.batch_size == pytest.approx(500 / mean, rel=0.1)


def test_an_update_of_a_training_looks_at_its_pairs_by_mixed_batches(training):
    assert in_parts(training.config)
    assert training.balancer.every == pytest.approx(training.config.mixture.every, rel=0.1)
    update = training.balancer.update()
    assert update.skipped is None
    assert set(update.rewards) == set(training.data)
    assert set(update.train_losses) == set(update.probed)


def many_pairs(budget, *overrides):
    return load_config(RECIPE, [f"mixture.probe_budget={budget}", f"data.pairs={PAIRS}", *overrides])


def test_of_many_pairs_an_update_looks_at_a_part_where_all_would_be_rare():
    config = within_budget(many_pairs(0.01), 20_000)
    assert in_parts(config)
    assert config.mixture.every == 400
    assert probe_share(config) == 0.01
    assert probe_passes(config) == int(0.01 * config.train.tokens / 4000 * 400)
    often = within_budget(many_pairs(0.3), 20_000)
    assert not in_parts(often)
    assert not in_parts(within_budget(many_pairs(0.9, "mixture.step_ahead=0.001"), 20_000))
    few = load_config(RECIPE, ["mixture.probe_budget=0.001"])
    assert not in_parts(within_budget(few, 20_000))


def test_a_budget_too_small_for_a_part_is_one_sentence():
    with pytest.raises(UserError, match="is too small: an update of 6 probes of 4,000 tokens fits after 25,000 steps"):
        within_budget(many_pairs(0.0001), 20_000)


def test_dev_sentences_are_sources_too(corpus, monkeypatch):
    config = small_config(corpus, monkeypatch)
    prepared = Prepared(config)
    dev = Sentences(config, prepared, config.data.names[0], "dev")
    parts = MixedSentences(dev, 300, 8)(torch.Generator().manual_seed(0))
    assert sum(part.sentences for part in parts) > 1
