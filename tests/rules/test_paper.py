"""The paper's settings by name."""

import pytest
from toy_balancers import balancer_of

from multidds.rewards import Cosine, MovingAverage, StabilizedCosine
from multidds.rules import Scorer, paper


@pytest.mark.parametrize(
    ("name", "reward"),
    [("multidds", Cosine()), ("multidds-s", StabilizedCosine()), ("moving-average", MovingAverage())],
)
def test_a_name_is_a_reward_and_the_papers_rule(name, reward):
    assert paper(name) == {"reward": reward, "rule": Scorer()}
    assert balancer_of(**paper(name)).step().mixture == balancer_of(reward=reward, rule=Scorer()).step().mixture


def test_the_main_method_is_the_default_and_another_name_is_refused():
    assert paper() == paper("multidds-s")
    with pytest.raises(ValueError, match="name.*'multidds-s'.*'dds'"):
        paper("dds")
