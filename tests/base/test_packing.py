"""Long lists in states, and long series in memory."""

import json
import math
import random
from itertools import pairwise

import pytest

from multidds._base.checks import is_finite
from multidds._base.packing import are_packed, packed, unpacked
from multidds.history.thinning import Thinned


@pytest.mark.parametrize("count", [0, 3, 256, 257, 5000])
def test_packed_numbers_come_back_bit_for_bit_through_json(count):
    rng = random.Random(count)
    values = [rng.uniform(-1, 1) * 10.0 ** rng.randint(-300, 300) for _ in range(count)]
    stored = json.loads(json.dumps(packed(values)))
    assert unpacked(stored) == values
    assert isinstance(stored, list) == (count <= 256)
    if count > 256:
        assert len(json.dumps(stored)) < 0.6 * len(json.dumps(values))
    assert are_packed(is_finite, count)(stored)
    assert not are_packed(is_finite, count + 1)(stored)


@pytest.mark.parametrize(
    "damaged", [None, 3, "text", {}, {"float64": 3}, {"float64": "not base64!"}, {"float64": "AAAA"}, [1, "a"]]
)
def test_what_is_no_list_of_numbers_does_not_pass(damaged):
    assert not are_packed(is_finite)(damaged)


def test_numbers_that_are_not_finite_are_checked_when_packed_too():
    assert not are_packed(is_finite)(packed([math.nan] * 300))


@pytest.mark.parametrize("most", [3, 4, 10, 100])
def test_a_thinned_series_is_short_and_evenly_spaced_and_has_both_ends(most):
    series = Thinned(most)
    for i in range(1000):
        series.append(i)
        kept = list(series)
        assert len(kept) == len(series) <= most
        assert kept[0] == 0
        assert kept[-1] == series[-1] == i
        if i < most:
            assert kept == list(range(i + 1))
        gaps = {b - a for a, b in pairwise(kept[:-1])}
        assert len(gaps) <= 1
    assert len(series) > most / 3
