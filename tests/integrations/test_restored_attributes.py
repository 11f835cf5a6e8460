"""Attributes that code sets, collects in or counts in meanwhile are as before afterwards."""

from collections import Counter, defaultdict, deque

import pytest
import torch
from torch import nn

from multidds.integrations.restored_attributes import restored_attributes


class Owner:
    def __init__(self):
        self.count, self.losses, self.kinds = 0, [1.0], {"a"}
        self.by_name, self.recent = defaultdict(list, loss=[1.0]), deque([1, 2], maxlen=2)
        self.total, self.sums = torch.tensor(3.0), {"loss": torch.tensor(5.0)}
        self.words = Counter("aab")

    def work(self):
        self.count += 1
        self.losses.append(2.0)
        self.kinds.add("b")
        self.by_name["loss"].append(2.0)
        self.by_name["new"].append(2.0)
        self.recent.append(3)
        self.total += 1
        self.sums["loss"] += 1
        self.words["b"] += 5
        self.extra = "new"


def shown(owner):
    return {key: repr(value) for key, value in vars(owner).items()}


def test_attributes_are_as_before_and_are_the_same_objects():
    owner = Owner()
    before, objects = shown(owner), dict(vars(owner))
    with restored_attributes([owner]):
        owner.work()
        assert shown(owner) != before
    assert shown(owner) == before
    assert all(vars(owner)[key] is value for key, value in objects.items())


def test_they_are_put_back_after_an_exception_too():
    owner = Owner()
    before = shown(owner)

    def fails():
        owner.work()
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"), restored_attributes([owner]):
        fails()
    assert shown(owner) == before


def test_what_was_removed_or_replaced_comes_back():
    owner = Owner()
    before = shown(owner)
    with restored_attributes([owner]):
        del owner.losses
        owner.by_name = None
    assert shown(owner) == before


def test_tensors_that_a_list_has_collected_are_not_copied():
    owner, kept = Owner(), torch.zeros(2)
    owner.losses = [kept]
    with restored_attributes([owner]):
        owner.losses.append(torch.ones(1))
    assert len(owner.losses) == 1
    assert owner.losses[0] is kept


def test_what_a_module_keeps_as_a_module_is_not_touched():
    """Parameters, buffers and flags are the prober's; those of an object of another kind are just "
    "attributes."""
    module, owner = nn.BatchNorm1d(2), Owner()
    owner.training = True
    with restored_attributes([*module.modules(), owner]):
        module.eval()
        module.running_mean += 1
        module.seen = 5
        owner.training = False
    assert not module.training
    assert module.running_mean.tolist() == [1.0, 1.0]
    assert not hasattr(module, "seen")
    assert owner.training
