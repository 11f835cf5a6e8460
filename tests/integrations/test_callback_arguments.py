"""Callbacks take the arguments of Balancer, with its defaults, and document them."""

import inspect
import re

import pytest

from multidds import Balancer
from multidds.integrations import huggingface, lightning, sentence_transformers, trl

FILLED_IN = {"mixture", "model", "loss", "train", "dev", "steps", "examples_per_step"}  # otherwise, or by the trainer
TAKERS = [huggingface.BalanceCallback, lightning.BalanceCallback, sentence_transformers.BalanceCallback, trl.balance]


@pytest.mark.parametrize("taker", TAKERS, ids=lambda taker: taker.__module__.split(".")[2])
def test_arguments_of_the_balancer_are_taken_and_documented(taker):
    ours, theirs = inspect.signature(taker).parameters, inspect.signature(Balancer).parameters
    taken = theirs.keys() - FILLED_IN
    assert len(taken) == 8
    for name in taken:
        assert repr(ours[name].default) == repr(theirs[name].default), name
        assert ours[name].annotation == theirs[name].annotation
    entries = re.findall(r"(?m)^(\w+(?:, \w+)*): ", inspect.getdoc(taker))
    assert ours.keys() <= {name for names in entries for name in names.split(", ")}
