"""Gradients of datasets and dev sets, taken without leaving a trace in the model or in any random state.

`Probe` answers what a rule asks in a round; `Probes` are the settings that `Balancer` and `ExampleScorer` share.
`relevance` takes one round of a model as it is:

>>> import torch
>>> from multidds.probes import relevance
>>> model = torch.nn.Linear(2, 1, bias=False)
>>> def loss(model, batch):
...     return model(batch).sum()
>>> x, y = torch.eye(2)[:1], torch.eye(2)[1:]
>>> table = relevance(model, loss, {"a": [x]}, {"dev": [x], "other": [y]}, batches=2)
>>> print(f"{table['dev']['a'][0]:.3f} {table['other']['a'][0]:.3f}")
1.000 0.000
"""

from . import priorities
from .probe import NotFiniteError, Probe
from .probes import Probes
from .relevance import relevance
from .round import Round, Training
from .table import Table

__all__ = ["NotFiniteError", "Probe", "Probes", "Round", "Table", "Training", "priorities", "relevance"]
