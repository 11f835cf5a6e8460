"""Errors in the loss of a probe batch keep their type and name the data."""

import pytest
import torch
from toys import batches, mlp
from toys import loss as loss_of

from multidds import Balancer, Mixture


@pytest.mark.parametrize(("role", "name", "kind"), [("train", "b", "dataset"), ("dev", "y", "dev set")])
def test_error_in_the_loss_keeps_its_type_and_names_the_data(role, name, kind):
    def loss(model, batch):
        if (batch[0] == 7).all():
            raise KeyError("labels")
        return loss_of(model, batch)

    data = {"train": batches(("a", "b"), 2), "dev": batches(("x", "y"), 2, seed=1)}
    data[role][name] = [[torch.full_like(part, 7) for part in batch] for batch in data[role][name]]
    balancer = Balancer(Mixture.uniform("ab"), mlp(), loss, every=1, **data)
    with pytest.raises(KeyError, match="labels") as caught:
        balancer.step()
    assert f"{kind} {name!r}" in caught.value.__notes__[0]
