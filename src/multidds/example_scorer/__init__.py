"""Weights of single examples, learned while a model trains (DDS).

A network scores examples, and the scores learn from the slopes of the examples' losses along the gradient of the dev
loss: an example that lowers the dev loss gains weight.

>>> import torch
>>> from multidds.example_scorer import ExampleScorer, SmallNetwork
>>> model = torch.nn.Linear(2, 1)
>>> def losses(model, batch):
...     return (model(batch[0])[:, 0] - batch[1]) ** 2
>>> batch = torch.ones(4, 2), torch.tensor([0.0, 1.0, 1.0, 9.0])
>>> scorer = ExampleScorer(model, losses, {"dev": [(torch.ones(3, 2), torch.ones(3))]}, every=1, network=SmallNetwork())
>>> scorer.weights(batch).tolist()
[1.0, 1.0, 1.0, 1.0]
>>> update = scorer.step(batch)  # after every optimizer step
>>> update.rewards.shape
torch.Size([4])
"""

from .dev_direction import DevDirection
from .example_scorer import ExampleScorer, ExampleUpdate
from .network import OwnNetwork
from .small_network import SmallNetwork

__all__ = ["DevDirection", "ExampleScorer", "ExampleUpdate", "OwnNetwork", "SmallNetwork"]
