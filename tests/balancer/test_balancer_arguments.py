"""Arguments that a balancer refuses, each by its name and value."""

import inspect
import re

import pytest
from torch import nn
from toy_balancers import NAMES, SIZES, balancer_of, many
from toys import batches

from multidds import Balancer, Limits, Mixture, Probes, batches_of
from multidds.rules import Cosine, MovingAverage, RelevancePlan, Scorer

PRIOR = Mixture.proportional(SIZES)


def test_there_are_thirteen_arguments():
    assert len(inspect.signature(Balancer).parameters) == 13
    with pytest.raises(TypeError, match="scorer"):
        balancer_of(scorer=Scorer())


@pytest.mark.parametrize(
    ("removed", "instead"),
    [({"reward": "multidds-s"}, r"rule=Scorer\(reward="), ({"groups": {"a": "g"}}, r"limits=Limits\(groups=")],
)
def test_a_removed_argument_is_refused_with_what_replaces_it(removed, instead):
    (name,) = removed
    with pytest.raises(TypeError, match=f"^Balancer: {name}= .*{instead}") as error:
        balancer_of(**removed)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": batches("ab"), "mixture": PRIOR}, "train: 'c' is missing; there are 'a', 'b'"),
        ({"train": batches("abcd"), "mixture": PRIOR}, "train: 'd' is unknown"),
        ({"dev": {}}, "dev set"),
        ({"dev": {"x": batches_of([], 4)}}, "dev 'x'.*no examples"),
        ({"mixture": Mixture({"a": 0.5, "b": 0.5, "c": 0.0})}, "'c' is 0"),
        ({"mixture": {"a": 1.0}}, "mixture.*dict"),
        ({"compute": 3}, "loss.*int"),
        ({"every": 0}, "every.* 0"),
        ({"every": 2.5}, r"every.*2\.5"),
        ({"every": None}, "every.*None"),
        ({"steps": 0}, "steps.* 0"),
        ({"examples_per_step": 0}, "examples_per_step.* 0"),
        ({"examples_per_step": "4"}, "examples_per_step.*'4'"),
        ({"rule": "multidds-s"}, r"rule=paper\('multidds-s'\)"),
        ({"rule": Cosine()}, "rule.*Cosine"),
        ({"rule": RelevancePlan(), "probes": Probes(batches=1)}, "batches=2"),
        ({"rule": nn.Linear(1, 1)}, "rule.*Linear"),
        ({"rule": Scorer(floor=9.0)}, r"floor 9\.0"),
        ({"priority": "lowest"}, "priority.*'lowest'"),
        ({"priority": {"q": 1.0}}, "priority.*'q'"),
        ({"limits": Limits(max_passes=4.0)}, "max_passes.*draws, steps"),
        ({"limits": Limits(max_passes={"d": 1.0}), "steps": 1, "examples_per_step": 1.0}, "max_passes: 'd'"),
        ({"limits": Limits(bounds={"g": (0, 0.5)})}, "bounds: 'g'"),
        ({"limits": Limits(bounds={"h": (0, 0.5)}, groups={"a": "g"})}, "bounds: 'h'"),
        ({"limits": Limits(groups={"nobody": "g"})}, "groups: 'nobody'"),
        ({"limits": Limits(groups={"a": "b"})}, "the group 'b'"),
        ({"probes": Probes(params=nn.Linear(1, 1).parameters())}, "params"),
        ({"seed": "x"}, "seed.*'x'"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_by_name(change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        balancer_of(**change)


def test_a_mixture_that_another_training_has_learned_is_noticed(caplog):
    mixture = Mixture.proportional(SIZES)
    first = balancer_of(mixture=mixture)
    assert "already learned" not in caplog.text
    first.update()
    balancer_of(mixture=Mixture(mixture.probabilities))  # on purpose: the result of the first as the prior
    assert "already learned" not in caplog.text
    share = f"c {100 * mixture['c']:.0f}%"
    second = balancer_of(mixture=mixture)
    assert re.search(f"already learned .*{share}.* new Mixture", caplog.text)
    caplog.clear()
    mixture.move(PRIOR.probabilities)
    balancer_of(mixture=mixture)
    assert "already learned" not in caplog.text
    second.load_state_dict(first.state_dict())
    balancer_of(mixture=mixture)
    assert "already learned" in caplog.text


@pytest.mark.parametrize(
    ("groups", "bounds", "message"),
    [
        ({"a": "g"}, {"g": (0.5, 0.6), "a": (0, 0.1)}, r"'g'.*\(0\.5, 0\.6\).*0 to 0\.1"),
        (dict.fromkeys(NAMES, "g"), {"g": (0, 0.5)}, r"sum to 0\.5"),
        ({"a": "g", "b": "h"}, {"g": (0.6, 1), "h": (0.6, 1)}, r"sum to 1\.2"),
    ],
)
def test_bounds_of_groups_that_no_mixture_keeps_are_refused(groups, bounds, message):
    with pytest.raises(ValueError, match=message):
        balancer_of(limits=Limits(bounds=bounds, groups=groups))


def test_settings_are_shared_and_a_refused_argument_moves_no_mixture():
    mixture = Mixture.uniform({"a": 10, "b": 300, "c": 600})
    before = mixture.state_dict()
    options = {
        "dev": batches(NAMES, 2),
        "steps": 10,
        "examples_per_step": 30,
        "rule": RelevancePlan(),
        "mixture": mixture,
    }
    for bad in (
        {"limits": Limits(bounds={"q": (0, 1)})},
        {"priority": {"q": 1}},
        {"limits": Limits(groups={"q": "g"})},
    ):
        with pytest.raises(ValueError, match="'q'"):
            balancer_of(**options, **bad)
    assert mixture.state_dict() == before
    rule = options["rule"]
    assert balancer_of(**options).step().mixture == balancer_of(**options | {"mixture": mixture}).step().mixture
    assert rule == RelevancePlan()


def test_the_memory_of_moving_averages_is_logged(caplog):
    balancer_of()
    assert caplog.text == ""
    balancer_of(rule=Scorer(MovingAverage()))
    assert "3 gradients in memory (1.03 kB)" in caplog.text
    caplog.clear()
    many(rule=Scorer(MovingAverage()))
    assert "40 gradients in memory (13.8 kB)" in caplog.text
