"""Sentence pairs left out by chance: as often as their chances say, the same again when a pool is "
"drawn again."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multidds import Order
from multidds.nmt.batches.pair_selection import Selection, Selections


class Named(SimpleNamespace):
    """A dataset, as far as a selection looks at it."""

    def __len__(self):
        return self.size


def taken(selection, count):
    return [selection.next() for _ in range(count)]


@given(size=st.integers(1, 50), seed=st.integers(0, 1000))
def test_where_all_are_trusted_the_order_is_that_of_the_dataset(size, seed):
    selection = Selection(Named(name="a", size=size), lambda origins: [1.0] * len(origins), seed)
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
def test_what_was_left_out_is_left_out_again_whatever_the_chances_are_then(seed, before, count):
    data = {name: Named(name=name, size=size) for name, size in (("a", 7), ("b", 40))}
    first = Selections(data, lambda origins: [0.3 + 0.1 * (i % 5) for _, i in origins], seed)
    for name in data:
        taken(first[name], before)
    first.begin()
    places = first.places
    pool = {name: taken(first[name], count) for name in data}
    second = Selections(data, lambda origins: pytest.fail("was decided before"), seed)
    second.move(places)
    second.begin(first.left_out)
    assert {name: taken(second[name], count) for name in data} == pool
    assert second.places == first.places
    assert second.left_out == first.left_out


def test_chances_of_the_moment_hold_from_the_next_pool_on():
    now = [1.0]
    selections = Selections({"a": Named(name="a", size=8)}, lambda origins: now * len(origins), seed=0)
    taken(selections["a"], 3)
    now[0] = 0.2
    selections.begin()
    taken(selections["a"], 200)
    assert 600 < len(selections.left_out["a"]) < 1000
