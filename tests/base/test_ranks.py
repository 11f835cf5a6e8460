"""Rank and world size, as given or as torch.distributed has them."""

import pytest

from multidds._base.ranks import checked_rank, rank_and_size


def test_a_process_alone_is_rank_0_of_1_unless_other_places_are_given():
    assert rank_and_size() == checked_rank("Here", None, None) == (0, 1)
    assert checked_rank("Here", 2, 3) == (2, 3)


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (None, 2, "Here: .*both rank and world_size"),
        (1, None, "Here: .*both rank and world_size"),
        (2, 2, "Here: rank.*2 of 2"),
        (-1, 2, "Here: rank.*-1 of 2"),
    ],
)
def test_a_place_that_cannot_be_is_refused(rank, world_size, message):
    with pytest.raises(ValueError, match=message):
        checked_rank("Here", rank, world_size)
