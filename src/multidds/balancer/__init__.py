"""The object that users step: it decides when updates come and joins probes, rewards and a rule.

>>> import torch
>>> from multidds import Balancer, Mixture
>>> model = torch.nn.Linear(1, 1)
>>> def loss(model, batch):
...     return (model(batch) - batch).square().mean()
>>> batches = {"a": [torch.ones(4, 1)], "b": [torch.zeros(4, 1)]}
>>> mixture = Mixture.uniform(["a", "b"])
>>> balancer = Balancer(mixture, model, loss, train=batches, dev={"dev": [torch.ones(4, 1)]}, every=2)
>>> [balancer.step() is not None for _ in range(4)]
[False, True, False, True]
"""

from .balancer import Balancer
from .pace import Budget

__all__ = ["Balancer", "Budget"]
