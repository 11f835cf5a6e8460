import pytest
import torch
from toy_runs import small_config

from multidds.nmt.batches import ProbeSentences, Sentences
from multidds.nmt.prepare import Prepared


@pytest.fixture
def sentences(corpus, monkeypatch):
    return Sentences(Prepared(small_config(corpus, monkeypatch)), "shift-base", "train")


def test_a_probe_batch_has_its_tokens_and_depends_on_the_generator_only(sentences):
    draw = ProbeSentences(sentences, 300)
    first, again, other = (draw(torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert [b.source.tolist() for b in first] == [b.source.tolist() for b in again]
    assert [b.source.tolist() for b in first] != [b.source.tolist() for b in other]
    draw = ProbeSentences(sentences, 3000)
    for seed in range(10):
        parts = draw(torch.Generator().manual_seed(seed))
        real = sum(len(b.source) for b in parts)
        padded = sum(b.padded for b in parts)
        assert 2500 < real <= 3000
        assert padded < 1.25 * 3000  # in parts of similar lengths; one tensor would be twice as large


def test_a_probe_batch_says_its_size_in_sentences(sentences):
    source = ProbeSentences(sentences, 500)
    assert source.size == len(sentences)
    assert source.batch_size == pytest.approx(500 / (sentences.all_tokens / len(sentences)), rel=0.1)
    assert sum(part.sentences for part in source(torch.Generator().manual_seed(0))) > 1


def test_the_parts_of_a_round_share_no_sentence(sentences, monkeypatch):
    read = []
    tokens = Sentences.tokens
    monkeypatch.setattr(Sentences, "tokens", lambda self, i: read.append(i) or tokens(self, i))
    source = ProbeSentences(sentences, 300)
    drawn = []
    for number in range(4):
        read.clear()
        assert source.of_part(7, (number, 4, 0))
        drawn.append(set(read))
        assert len(drawn[-1]) > 1
    assert sum(map(len, drawn)) == len(set.union(*drawn))
