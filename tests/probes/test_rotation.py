"""Rotation: every set regularly, without bias, whatever the order."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest

from multidds.probes.rotation import hits, inclusion, rotated, turn_of

NAMES = [f"s{i}" for i in range(60)]
EQUAL = dict.fromkeys(NAMES, 1.0)


def rotation(count, update, weights=EQUAL, seed=3, role="train"):
    return rotated(seed, role, weights, count, update)


@pytest.mark.claim("The method", "updates that probe a part: unbiased, every set in time; order, resume, ranks")
@pytest.mark.parametrize("count", [1, 7, 20, 59])
def test_every_set_is_probed_in_every_turn_and_never_waits_for_two(count):
    looks, last, turn = Counter(), dict.fromkeys(NAMES, -1), turn_of(len(NAMES), count)
    for update in range(4 * turn):
        found = rotation(count, update)
        assert len(found) == count
        for name in found:
            assert update - last[name] < 2 * turn
            last[name] = update
        looks.update(found)
        if (update + 1) % turn == 0:
            assert set(looks) == set(NAMES)
            looks.clear()


def test_if_parts_make_whole_turns_every_set_is_probed_exactly_once():
    looks = Counter(name for update in range(3) for name in rotation(20, update))
    assert looks == Counter(NAMES)


def test_the_sets_depend_on_seed_role_and_name_only():
    found = [list(rotation(7, 5, dict.fromkeys(names, 1.0))) for names in (NAMES, NAMES[::-1])]
    assert found[0] == found[1][::-1]
    for other in (rotation(7, 5, seed=4), rotation(7, 5, role="dev")):
        assert set(other) != set(found[0])


def test_turns_have_different_orders():
    turns = [{frozenset(rotation(20, 3 * turn + i)) for i in range(3)} for turn in range(2)]
    assert turns[0].isdisjoint(turns[1])


def test_probabilities_follow_the_weights_and_sum_to_the_count():
    weights = {"a": 8.0, "b": 1.0, "c": 1.0, "d": 2.0, "e": 0.0}
    found = inclusion(weights, 2)
    assert found == pytest.approx({"a": 1.0, "b": 0.25, "c": 0.25, "d": 0.5})
    assert inclusion(weights, 9) == dict.fromkeys("abcd", 1.0)


@pytest.mark.claim("The method", "updates that probe a part: unbiased, every set in time; order, resume, ranks")
def test_over_all_places_of_the_points_every_set_counts_as_its_weight_says():
    """Exactly: the sets that are hit change only where a point crosses an edge; the intervals between are summed."""
    lengths = [Fraction(n, 16) for n in (16, 5, 3, 9, 1, 14)]  # three sets in all
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    edges = sorted({Fraction(0), *(end - int(end) for end in ends), Fraction(1)})
    seen = [Fraction(0)] * len(lengths)
    for low, high in pairwise(edges):
        found = hits([float(length) for length in lengths], float((low + high) / 2), 3)
        assert len(set(found)) == 3
        for i in found:
            seen[i] += high - low
    assert seen == lengths


def test_sets_of_larger_weights_are_probed_more_often():
    weights = {name: 10.0 if i < 3 else 1.0 for i, name in enumerate(NAMES)}
    looks = Counter(name for update in range(300) for name in rotation(6, update, weights))
    expected = inclusion(weights, 6)
    for name in NAMES:
        assert looks[name] == pytest.approx(300 * expected[name], abs=12)
