"""How well both sides of a sentence pair go together: against counting by hand; mixed-up pairs are found."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multidds.nmt.noisy_pairs import lexicon
from multidds.nmt.noisy_pairs.lexicon import Lexicon


class Kept:
    """Sentence pairs in memory, as `Sentences` gives them."""

    def __init__(self, pairs):
        self._pairs = [tuple(np.array(side, np.int64) for side in pair) for pair in pairs]

    def __len__(self):
        return len(self._pairs)

    def sizes(self, i):
        source, target = self._pairs[i]
        return len(source) + 1, len(target) + 1

    def tokens(self, i):
        return self._pairs[i]


def by_hand(pairs, judged):
    """The formulas of the module, from all other pairs, one token at a time."""
    others = [tuple(map(set, pair)) for k, pair in enumerate(pairs) if k != judged]
    sides = tuple(map(set, pairs[judged]))
    fits = []
    for given_side, wanted_side in ((0, 1), (1, 0)):
        gains = []
        for wanted in sides[wanted_side]:
            usual = (sum(wanted in other[wanted_side] for other in others) + 0.5) / (max(len(others), 1) + 1)
            best = 0.0
            for beside in sides[given_side]:
                there = [other for other in others if beside in other[given_side]]
                together = sum(wanted in other[wanted_side] for other in there)
                best = max(best, (together + 3 * usual) / (len(there) + 3))
            gains.append(np.log(best / usual))
        fits.append(float(np.mean(gains)))
    return tuple(fits)


sides = st.lists(st.integers(0, 6), min_size=1, max_size=5)


@given(pairs=st.lists(st.tuples(sides, sides), min_size=1, max_size=12), cut=st.integers(0, 11))
def test_a_fit_is_what_all_other_pairs_say(pairs, cut):
    data = {"a": Kept(pairs[: cut + 1])} | ({"b": Kept(pairs[cut + 1 :])} if pairs[cut + 1 :] else {})
    found = Lexicon(data)
    for k in range(len(pairs)):
        name, i = ("a", k) if k <= cut else ("b", k - cut - 1)
        assert found.fit(name, i) == pytest.approx(by_hand(pairs, k), abs=1e-12)


@settings(max_examples=20)
@given(seed=st.integers(0, 99))
def test_what_is_counted_in_parts_is_counted_the_same(seed):
    rng = np.random.default_rng(seed)
    pairs = [(rng.integers(0, 9, 5), rng.integers(0, 9, 4)) for _ in range(40)]
    whole = Lexicon({"a": Kept(pairs)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lexicon, "_AT_ONCE", 50)
        parts = Lexicon({"a": Kept(pairs)})
    assert [whole.fit("a", i) for i in range(40)] == [parts.fit("a", i) for i in range(40)]


def test_an_empty_side_fits_neither_well_nor_badly():
    assert Lexicon({"a": Kept([([1, 2], [3]), ([1], [])])}).fit("a", 1) == (0.0, 0.0)


def translated(rng, count, words=60):
    """Pairs whose target has the word 100 + w for every word w of the source, in any order."""
    for _ in range(count):
        source = rng.integers(0, words, rng.integers(3, 9))
        yield source, 100 + rng.permutation(source)


def test_wrong_targets_fit_less_though_two_fifths_are_wrong():
    rng = np.random.default_rng(0)
    pairs = list(translated(rng, 4000))
    wrong = rng.random(4000) < 0.4
    moved, targets = np.flatnonzero(wrong), [target for _, target in pairs]
    for k, other in zip(moved, np.roll(moved, 1), strict=True):
        pairs[k] = (pairs[k][0], targets[other])
    found = Lexicon({"a": Kept(pairs)}, most=40_000)
    assert len(found._counted["a"]) < 2000
    fits = np.array([found.fit("a", i) for i in range(4000)])
    for column in fits.T:
        threshold = np.median(column[~wrong]) / 2
        assert (column[wrong] < threshold).mean() > 0.95
        assert (column[~wrong] > threshold).mean() > 0.95
