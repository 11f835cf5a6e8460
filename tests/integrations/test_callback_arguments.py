"""Callbacks take the arguments of Balancer, with its defaults, and document them."""

import inspect
import re
from typing import get_type_hints

import pytest

from multidds import Balancer
from multidds.balancer import balancer
from multidds.integrations import huggingface, lightning, sentence_transformers, trl
from multidds.integrations.balancer_arguments import _DEFAULTS, BalancerArguments

FILLED_IN = {"mixture", "model", "loss", "train", "dev", "steps", "examples_per_step"}  # otherwise, or by the trainer
TAKERS = [huggingface.BalanceCallback, lightning.BalanceCallback, sentence_transformers.BalanceCallback, trl.balance]


def test_arguments_that_are_handed_on_are_those_of_the_balancer():
    theirs, hints = inspect.signature(Balancer).parameters, get_type_hints(Balancer.__init__, vars(balancer))
    handed_on = get_type_hints(BalancerArguments)
    assert handed_on.keys() == _DEFAULTS.keys() == theirs.keys() - FILLED_IN - {"every"}
    for name, hint in handed_on.items():
        assert repr(_DEFAULTS[name]) == repr(theirs[name].default), name
        assert hint == hints[name], name


@pytest.mark.parametrize("taker", TAKERS, ids=lambda taker: taker.__module__.split(".")[2])
def test_every_argument_is_documented(taker):
    function = taker.__init__ if inspect.isclass(taker) else taker
    theirs, ours = inspect.signature(Balancer).parameters, inspect.signature(function).parameters
    assert repr(ours["every"].default) == repr(theirs["every"].default)
    assert get_type_hints(function)["arguments"].__args__ == (BalancerArguments,)
    names = ours.keys() - {"self", "arguments"} | BalancerArguments.__annotations__.keys()
    entries = re.findall(r"(?m)^(\w+(?:, \w+)*): ", inspect.getdoc(taker))
    assert names <= {name for names in entries for name in names.split(", ")}
