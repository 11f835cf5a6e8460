"""Gradients of datasets and dev sets, taken without leaving a trace in the model or in any random state.

`probe` takes all of them and returns the table of inner products; `Probes` are the settings that `Balancer` and
`ExampleScorer` share:

>>> import torch
>>> from multidds.probes import probe
>>> model = torch.nn.Linear(2, 1, bias=False)
>>> def loss(model, batch):
...     return model(batch).sum()
>>> table = probe(model, loss, {"a": [torch.eye(2)[:1]]}, {"dev": [torch.eye(2)[:1]], "other": [torch.eye(2)[1:]]})
>>> table.cosines().tolist()
[[1.0], [0.0]]
"""

from .alignment import Alignment
from .probe import probe
from .probes import Probes

__all__ = ["Alignment", "Probes", "probe"]
