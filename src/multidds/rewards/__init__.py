"""From probes to one reward per dataset, with its standard error.

A reward is an object that carries its settings, such as `StabilizedCosine()`, the default and the reward of MultiDDS-S.
The formulas are pure functions of the table that `multidds.probes.probe` returns:

>>> import torch
>>> from multidds import rewards
>>> from multidds.probes import Alignment
>>> norms, inner = torch.tensor([1.0, 2.0]).double(), torch.tensor([[0.5, 0.0]]).double()
>>> table = Alignment(
...     train_names=("a", "b"), dev_names=("dev",), train_norms=norms, dev_train=inner,
...     dev_dev=torch.ones(1, 1).double(), train_losses={}, dev_losses={},
... )
>>> rewards.multidds_s(table, torch.tensor([1.0])).tolist()
[0.5, 0.0]
"""

from . import priorities
from .formulas import Formula, multidds, multidds_s
from .kinds import Cosine, FromTable, MeanSlope, MovingAverage, Reward, StabilizedCosine
from .relevance import RelevanceTable, relevance

__all__ = [
    "Cosine",
    "Formula",
    "FromTable",
    "MeanSlope",
    "MovingAverage",
    "RelevanceTable",
    "Reward",
    "StabilizedCosine",
    "multidds",
    "multidds_s",
    "priorities",
    "relevance",
]
