import pytest
from toy_runs import small_config

from multidds.nmt.batches import Rows, Sentences, assemble, evaluation_batches
from multidds.nmt.prepare import Prepared
from multidds.nmt.prepare.vocabulary import BEGIN, END, tag_of


@pytest.fixture
def data(corpus, monkeypatch):
    config = small_config(corpus, monkeypatch)
    prepared = Prepared(config)
    return {name: Sentences(prepared, name, "train") for name in config.data.names}


def test_a_batch_holds_its_sentences_with_their_ends(data):
    sentences = data["mirror-base"]
    batch = assemble([(sentences, 4), (sentences, 9)])
    source, target_in, target_out = [], [], []
    for i in (4, 9):
        tokens, other = (side.tolist() for side in sentences.tokens(i))
        source += [*tokens, END]
        target_in += [BEGIN, *other]
        target_out += [*other, END]
    assert batch.source.tolist() == source
    assert batch.target_in.tolist() == target_in
    assert batch.target_out.tolist() == target_out
    assert batch.tokens == len(batch.target_out)
    assert batch.sentences == 2
    assert batch.pairs == ("mirror-base",)


def test_rows_lead_from_tokens_to_padded_places_and_back():
    rows = Rows.of([2, 4, 1])
    assert (rows.sentences, rows.longest) == (3, 4)
    assert rows.positions.tolist() == [0, 1, 0, 1, 2, 3, 0]
    assert rows.places.tolist() == [0, 1, 4, 5, 6, 7, 8]
    assert rows.tokens[rows.places].tolist() == list(range(7))
    assert rows.padding.tolist() == [2, 3, 9, 10, 11]


def test_a_validation_sees_every_sentence_once_within_its_budget(data):
    sentences = data["shift-base"]
    batches = list(evaluation_batches(sentences, 500))
    assert sum(batch.sentences for batch in batches) == len(sentences)
    assert sum(batch.tokens for batch in batches) == int(sentences.target_lengths.sum())
    assert max(batch.padded for batch in batches) <= 500


def test_the_tag_stands_at_the_head_of_the_source_in_one_to_many(corpus, monkeypatch):
    config = small_config(corpus, monkeypatch, pairs=["base-mirror", "base-shift"])
    prepared = Prepared(config)
    for pair in config.data.pairs:
        batch = assemble([(Sentences(prepared, pair.name, "train"), 0)])
        assert prepared.vocabulary["source"][int(batch.source[0])] == tag_of(pair.target)
