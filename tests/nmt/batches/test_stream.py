from collections import Counter

import pytest
from toy_runs import small_config

from multidds import Mixture
from multidds._base.errors import UserError
from multidds.nmt.batches import Sentences, Stream
from multidds.nmt.prepare import Prepared
from multidds.nmt.prepare.vocabulary import END


@pytest.fixture
def data(corpus, monkeypatch):
    config = small_config(corpus, monkeypatch)
    prepared = Prepared(config)
    return {name: Sentences(prepared, name, "train") for name in config.data.names}


def stream_of(data, mixture=None, **kwargs):
    settings = {"tokens": 800, "accumulate": 2, "pool": 6, "mixing": "example", "seed": 3} | kwargs
    return Stream(data, mixture or Mixture.proportional({name: len(d) for name, d in data.items()}), **settings)


def contents(step):
    return [(batch.source.tolist(), batch.target_out.tolist()) for batch in step[0]]


@pytest.mark.parametrize("mixing", ["example", "batch"])
def test_batches_have_about_their_tokens_and_little_padding(data, mixing):
    stream = stream_of(data, mixing=mixing, tokens=2000, pool=10)
    padded = real = 0
    for _ in range(20):
        batches, sentences, tokens = stream.next(10)
        assert len(batches) == 2
        assert sum(batch.sentences for batch in batches) == sentences
        assert sum(batch.tokens for batch in batches) == tokens
        for batch in batches:
            assert batch.padded < 1500
            padded += batch.source_rows.tokens.numel() + batch.target_rows.tokens.numel()
            real += batch.tokens + len(batch.source)
    assert padded / real < 1.25


def test_no_batch_carries_an_old_mixture(data):
    mixture = Mixture({"mirror-base": 1.0, "shift-base": 0.0})
    stream = stream_of(data, mixture)
    seen = []
    for step in range(20):
        batches, _, _ = stream.next(7 - step % 7)  # an update after every seventh step
        seen.append({pair for batch in batches for pair in batch.pairs})
        if step == 6:
            mixture.move({"mirror-base": 0.0, "shift-base": 1.0})
    assert seen == [{"mirror-base"}] * 7 + [{"shift-base"}] * 13


def test_draws_follow_the_mixture_and_passes_count_them(data):
    mixture = Mixture({"mirror-base": 0.7, "shift-base": 0.3})
    stream = stream_of(data, mixture)
    seen = Counter()
    for _ in range(100):
        stream.next(6)
    passes = stream.passes
    for name, sentences in data.items():
        seen[name] = passes[name] * len(sentences)
    assert seen["mirror-base"] / sum(seen.values()) == pytest.approx(0.7, abs=0.03)


def test_in_batch_mixing_every_batch_is_of_one_pair_as_the_mixture_says(data):
    stream = stream_of(data, Mixture({"mirror-base": 0.7, "shift-base": 0.3}), mixing="batch")
    pairs = [batch.pairs for _ in range(150) for batch in stream.next(6)[0]]
    assert all(len(names) == 1 for names in pairs)
    assert Counter(pairs)[("mirror-base",)] / len(pairs) == pytest.approx(0.7, abs=0.08)


@pytest.mark.parametrize("mixing", ["example", "batch"])
def test_every_sentence_comes_once_per_pass(data, mixing):
    only = {"mirror-base": data["mirror-base"]}
    stream = stream_of(only, mixing=mixing)
    order = []
    while len(order) < 500:  # "mirror-base" has 500 sentences
        batches, _, _ = stream.next(1)  # a pool of one step
        order += [i for batch in batches for _, i in batch.origins]
    assert stream.passes["mirror-base"] == len(order) / 500
    if mixing == "example":
        assert len(set(order)) == 500
        assert max(Counter(order).values()) <= 2  # the last step reaches into the second pass
    else:  # a shelf is cut from at most a pass
        assert max(Counter(order).values()) <= 2


@pytest.mark.parametrize("mixing", ["example", "batch"])
@pytest.mark.parametrize("stop", [0, 1, 5, 6, 11])
def test_a_loaded_stream_goes_on_in_the_middle_of_a_pool(data, mixing, stop):
    expected = stream_of(data, mixing=mixing)
    for _ in range(stop):
        expected.next(6)
    state = expected.state_dict()
    resumed = stream_of(data, mixing=mixing)
    resumed.load_state_dict(state)
    for _ in range(9):
        assert contents(resumed.next(6)) == contents(expected.next(6))
    assert resumed.passes == expected.passes


@pytest.mark.parametrize("mixing", ["example", "batch"])
def test_a_state_behind_a_pool_does_not_draw_it_again(data, mixing):
    mixture = Mixture({"mirror-base": 0.8, "shift-base": 0.2})
    stream = stream_of(data, mixture, mixing=mixing)
    for _ in range(6):
        stream.next(6)
    mixture.move({"mirror-base": 0.1, "shift-base": 0.9})  # an update, and then a checkpoint
    state, passes = stream.state_dict(), stream.passes
    resumed = stream_of(data, mixture, mixing=mixing)
    resumed.load_state_dict(state)
    assert resumed.passes == passes
    assert contents(resumed.next(6)) == contents(stream.next(6))


def test_ranks_share_the_batches_of_a_step(data):
    whole = stream_of(data, accumulate=4)
    ranks = [stream_of(data, accumulate=4, rank=rank, world_size=2) for rank in range(2)]
    for _ in range(8):
        together, shares = whole.next(6), [rank.next(6) for rank in ranks]
        for rank, share in enumerate(shares):
            assert contents(share) == contents(together)[rank::2]
            assert share[1:] == together[1:]


def sentences_of(step):
    """The target sentences of a step, in any order."""
    found = Counter()
    for batch in step[0]:
        start = 0
        for end in (batch.target_out == END).nonzero().flatten().tolist():
            found[tuple(batch.target_out[start:end].tolist())] += 1
            start = end + 1
    return found


@pytest.mark.parametrize("mixing", ["example", "batch"])
@pytest.mark.parametrize(("accumulate", "among"), [(1, 2), (1, 3), (2, 3), (3, 2)])
def test_a_step_has_the_same_sentences_for_any_number_of_ranks(data, mixing, accumulate, among):
    whole = stream_of(data, accumulate=accumulate, mixing=mixing)
    for _ in range(3):
        whole.next(6)
    ranks = [stream_of(data, accumulate=accumulate, mixing=mixing, rank=r, world_size=among) for r in range(among)]
    for rank in ranks:
        rank.load_state_dict(whole.state_dict())  # in the middle of a pool
    for _ in range(8):
        together, shares = whole.next(6), [rank.next(6) for rank in ranks]
        assert sum((sentences_of(share) for share in shares), Counter()) == sentences_of(together)
        assert {len(share[0]) for share in shares} == {-(-accumulate // among)}
        assert {share[1:] for share in shares} == {together[1:]}
        assert max(b.padded for s in shares for b in s[0]) < 1.3 * 800 / among / -(-accumulate // among)
    assert all(rank.state_dict() == whole.state_dict() for rank in ranks)


def test_a_step_with_fewer_sentences_than_ranks_is_refused(data):
    stream = stream_of(data, accumulate=1, tokens=1, rank=0, world_size=2)
    with pytest.raises(
        UserError, match=r"\[train\] tokens: a step has 1 sentence pairs, which 2 processes cannot share"
    ):
        stream.next(6)


def test_pools_before_an_update_are_about_equal(data):
    stream = stream_of(data, pool=6)
    lengths = []
    for step in range(13):
        stream.next(13 - step)
        lengths.append(stream.state_dict()["steps"] or lengths[-1])
    assert lengths == [5] * 5 + [4] * 8
