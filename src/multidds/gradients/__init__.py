"""Gradients: their algebra, the elements that a rank holds, and the ranks that compute them.

A gradient is a list of tensors, one per parameter; None stands for zero. `vectors` has inner products, sums and the
shards of FSDP2. `sketch` has short vectors that keep inner products, `parallel_models` DDP and FSDP2 around a model,
and `work_split` the division of gradients among ranks.

>>> import torch
>>> from multidds.gradients import Sketcher, added, dot, norm
>>> a, b = [torch.tensor([3.0, 4.0]), None], [torch.tensor([1.0, 1.0]), torch.tensor([2.0])]
>>> dot(a, b), norm(a)
(7.0, 5.0)
>>> added(None, b, scale=2.0)
[tensor([2., 2.]), tensor([4.])]
>>> sketcher = Sketcher(buckets=1024)
>>> values, sketch = torch.randn(10_000, generator=torch.Generator().manual_seed(1)), sketcher.new(torch.float32)
>>> sketcher.add(sketch, "weight", values)
>>> bool(abs(sketch.dot(sketch) / values.dot(values) - 1) < 0.1)
True
"""

from .sketch import Sketcher
from .vectors import Gradient, added, dot, norm

__all__ = ["Gradient", "Sketcher", "added", "dot", "norm"]
