import pytest
import torch
from toy_runs import small_config

from multidds.nmt.batches import Sentences, assemble, probe_batches
from multidds.nmt.batches.probe_batches import MixedSentences, collate, sentence_losses, sentences_of
from multidds.nmt.model.transformer import make_model
from multidds.nmt.prepare import Prepared


@pytest.fixture
def config(corpus, monkeypatch):
    return small_config(corpus, monkeypatch)


@pytest.fixture
def data(config):
    prepared = Prepared(config)
    return {name: Sentences(prepared, name, "train") for name in config.data.names}


def test_a_probe_batch_has_its_tokens_and_depends_on_the_generator_only(data):
    draw = probe_batches(data["shift-base"], 300)
    first, again, other = (draw(torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert [b.source.tolist() for b in first] == [b.source.tolist() for b in again]
    assert [b.source.tolist() for b in first] != [b.source.tolist() for b in other]
    draw = probe_batches(data["shift-base"], 3000)
    for seed in range(10):
        parts = draw(torch.Generator().manual_seed(seed))
        real = sum(len(b.source) for b in parts)
        padded = sum(b.padded for b in parts)
        assert 2500 < real <= 3000
        assert padded < 1.25 * 3000  # in parts of similar lengths; one tensor would be twice as large


def test_the_losses_of_sentences_are_those_of_each_alone(config, data):
    model = make_model(config, Prepared(config).vocabulary).eval()
    items = [(sentences, i) for i in (3, 11, 4) for sentences in data.values()]
    together = sentence_losses(config)(model, collate(items))
    for item, loss in zip(items, together.tolist(), strict=True):
        batch = assemble([item])
        alone = model(batch, config.train.label_smoothing) / batch.tokens
        assert loss == pytest.approx(alone.item(), rel=1e-5)


def test_a_source_of_sentences_draws_its_pair_only(data):
    sentences = data["shift-base"]
    source = MixedSentences(sentences, 500, sentences_of(data.values(), 500))
    drawn = source.examples(torch.Generator().manual_seed(1), 7)
    assert len(drawn) == 7
    assert {of for of, _ in drawn} == {sentences}
    assert drawn == source.examples(torch.Generator().manual_seed(1), 7)
    mean = sum(d.all_tokens / len(d) for d in data.values()) / len(data)
    assert source.batch_size == pytest.approx(500 / mean, rel=0.1)
    assert sum(part.sentences for part in source(torch.Generator().manual_seed(0))) > 1
