"""Sentence pairs left out by chance: as often as their chances say, the same again when a pool is drawn again."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multidds.nmt.batches.pair_selection import Selection
from multidds.sampling import Order


class Named(SimpleNamespace):
    """A dataset, as far as a selection uses it."""

    def __len__(self):
        return self.size


def taken(selection, count):
    return [selection.next() for _ in range(count)]


@given(size=st.integers(1, 50), seed=st.integers(0, 1000), sure=st.booleans())
def test_if_none_is_left_out_the_order_is_that_of_the_dataset(size, seed, sure):
    chances = (lambda origins: [1.0] * len(origins)) if sure else None
    selection = Selection(Named(name="a", size=size), chances, seed)
    order = Order(seed, "a", size)
    assert taken(selection, 150) == [order[i] for i in range(150)]
    assert selection.left_out == []
    assert selection.place == 150


def test_pairs_come_as_often_as_their_chances_say():
    chance = {i: (0.1, 0.5, 1.0)[i % 3] for i in range(30)}
    selection = Selection(Named(name="a", size=30), lambda origins: [chance[i] for _, i in origins], seed=1)
    counts = np.bincount(taken(selection, 20_000), minlength=30)
    passes = selection.place / 30
    for i, count in enumerate(counts):
        assert count / passes == pytest.approx(chance[i], abs=4 * (chance[i] / passes) ** 0.5)
    assert len(selection.left_out) == selection.place - 20_000


@given(seed=st.integers(0, 100), before=st.integers(0, 90), count=st.integers(1, 90))
def test_places_that_were_left_out_are_left_out_again_with_any_chances(seed, before, count):
    data = Named(name="a", size=7)
    first = Selection(data, lambda origins: [0.3 + 0.1 * (i % 5) for _, i in origins], seed)
    taken(first, before)
    place = first.place
    first.begin(place)
    pool = taken(first, count)
    second = Selection(data, lambda origins: pytest.fail("was decided before"), seed)
    second.begin(place, first.left_out)
    assert taken(second, count) == pool
    assert (second.place, second.left_out) == (first.place, first.left_out)


def test_new_chances_hold_from_the_next_pool_on():
    now = [1.0]
    selection = Selection(Named(name="a", size=8), lambda origins: now * len(origins), seed=0)
    taken(selection, 3)
    now[0] = 0.2
    selection.begin(selection.place)
    taken(selection, 200)
    assert 600 < len(selection.left_out) < 1000
