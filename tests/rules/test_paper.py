"""The paper's settings by name."""

import pytest

from multidds.rules import Cosine, MovingAverage, Scorer, StabilizedCosine, paper


@pytest.mark.parametrize(
    ("name", "reward"),
    [("multidds", Cosine()), ("multidds-s", StabilizedCosine()), ("moving-average", MovingAverage())],
)
def test_a_name_is_the_papers_rule_with_its_reward(name, reward):
    assert paper(name) == Scorer(reward=reward)


def test_the_main_method_is_the_default_and_another_name_is_refused():
    assert paper() == paper("multidds-s") == Scorer()
    with pytest.raises(ValueError, match="name.*'multidds-s'.*'dds'"):
        paper("dds")
