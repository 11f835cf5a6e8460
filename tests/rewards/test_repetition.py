import pytest

from multidds.rewards.repetition import RepetitionMemory

NAMES = ["big", "small", "other"]


def memory(gaps, passes, updates=10):
    """A memory of updates with these gaps between dev and training loss."""
    seen = RepetitionMemory(NAMES)
    for _ in range(updates):
        seen.add(dict.fromkeys(NAMES, 1.0), {name: 1.0 + gap for name, gap in gaps.items()}, passes)
    return dict(zip(NAMES, seen.estimate().tolist(), strict=True))


def test_the_prior_is_fifteen_passes():
    assert memory({}, {}).values() == pytest.approx([15.0] * 3)


def test_the_prior_is_kept_by_data_that_agree_with_it():
    assert memory({"big": 0.2, "small": 0.4}, {"big": 15, "small": 30})["other"] == pytest.approx(15.0)


@pytest.mark.claim("The method", "the worth of repeated data is measured by the gap between seen and unseen examples")
def test_memorised_data_are_worth_less():
    found = memory({"big": 0.05, "small": 2.0}, {"big": 1, "small": 10})
    assert found["small"] < found["other"] < 15
    assert found["small"] < 4


def test_data_that_generalise_are_worth_more():
    assert memory({"big": 0.0, "small": 0.0}, {"big": 30, "small": 60})["other"] > 30


def test_a_dataset_is_shrunk_towards_the_common_value():
    common = memory({"big": 1.0, "small": 1.0}, {"big": 10, "small": 10})
    apart = memory({"big": 0.0, "small": 2.0}, {"big": 10, "small": 10})
    assert apart["small"] < common["small"] < apart["big"]
    assert apart["big"] / apart["small"] < 2


def test_dev_sets_of_other_names_and_losses_that_are_not_finite_say_nothing():
    seen = RepetitionMemory(NAMES)
    seen.add({"big": 1.0}, {"goal": 5.0, "big": float("nan")}, {"big": 10})
    assert seen.estimate().tolist() == pytest.approx([15.0] * 3)


def test_a_state_continues_exactly_and_other_datasets_are_refused():
    seen, other = RepetitionMemory(NAMES), RepetitionMemory(NAMES)
    seen.add({"big": 1.0}, {"big": 1.5}, {"big": 3})
    other.load_state_dict(seen.state_dict())
    assert other.estimate().tolist() == seen.estimate().tolist()
    with pytest.raises(ValueError, match="3 datasets, not 1"):
        RepetitionMemory(["big"]).load_state_dict(seen.state_dict())
