"""The rank that computes each gradient."""

import pytest

from multidds.gradients.work_split import owners_of


@pytest.mark.parametrize(
    ("splittable", "batches", "ranks", "owners"),
    [
        ("abcde", 4, 2, {"a": 0, "b": 1, "c": 0, "d": 1}),  # full rounds; the rest is taken together
        ("bcde", 4, 2, {"b": 0, "c": 1, "d": 0, "e": 1}),
        ("a", 4, 2, {}),
        ("", 4, 2, {}),
        ("abcde", 2, 8, {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4}),  # two batches would leave six of eight ranks idle
        ("a", 2, 8, {}),
    ],
)
def test_full_rounds_over_the_ranks_are_split(splittable, batches, ranks, owners):
    assert owners_of("abcde", splittable, batches, ranks) == owners
